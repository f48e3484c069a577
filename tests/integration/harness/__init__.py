"""What the integration tests share: workers to test and clients to test them with."""
