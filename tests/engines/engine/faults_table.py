"""What a prompt says to be aborted, for faults.py and for the tests."""

#: A prompt that begins with these, the place of a status below and a number of tokens is aborted after so many.
ABORT_ME = (511, 510, 509)
STATUSES = (None, 200, 400, 404, 408, 429, 500, 501, 503, 504, 599)
