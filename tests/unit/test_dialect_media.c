/* Multimodal inputs: what arrives, what is refused and in which words, what is kept instead of copied, and
 * which segments a refused message names. */
#include <check.h>
#include <errno.h>
#include <stdio.h>

#include "base/arena.h"
#include "dialects/request.h"
#include "media_wire.h"

static rk_limits limits;
static rk_limits prefill;

static void setup(void) {
    limits = plain_limits();
    limits.rooms = false; /* pairs are not what is tested here */
    prefill = limits;
    prefill.role = RK_ROLE_PREFILL;
}

/* ---- what arrives ---- */

START_TEST(an_item_arrives_whole) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    raw_uint(&item, I(PLACEHOLDER_TOKEN_ID), 7);
    add_range(&item, 3, 1);
    add_tensor(&item, "grid", (tensor_parts){.dtype = "int64", .bytes = "12345678", .size = 8});
    add_tensor(&item, "empty",
               (tensor_parts){
                   .dtype = "float32", .shape = (const uint8_t *)"\0\5", .dims = 2, .bytes = "", .size = 0});
    rk_request *r = accepts(with_item(item), &limits);
    ck_assert_uint_eq(r->media_count, 1);
    ck_assert_uint_eq(r->segment_count, 0);
    const rk_media *media = &r->media[0];
    ck_assert_int_eq(media->modality, RK_MODALITY_IMAGE);
    ck_assert_uint_eq(media->content_hash_bytes, 11);
    ck_assert_mem_eq(media->content_hash, "12345678abc", 11);
    ck_assert(media->has_encoder_input && media->has_token_id && !media->has_encoder);
    ck_assert_uint_eq(media->token_id, 7);
    ck_assert_uint_eq(media->placeholder_count, 2);
    ck_assert(media->placeholders[0].offset == 1 && media->placeholders[0].length == 2);
    ck_assert(media->placeholders[1].offset == 3 && media->placeholders[1].length == 1);
    const rk_tensor *input = &media->encoder_input;
    ck_assert_str_eq(input->dtype, "uint8");
    ck_assert(input->dims == 2 && input->shape[0] == 2 && input->shape[1] == 2 && input->nbytes == 4);
    char bytes[8];
    ck_assert_int_eq(rk_request_read_tensor(r, input, bytes), 0);
    ck_assert_mem_eq(bytes, "\1\2\3\4", 4);
    ck_assert_uint_eq(media->tensor_count, 2);
    ck_assert_str_eq(media->tensors[0].name.data, "grid");
    ck_assert_uint_eq(media->tensors[0].tensor.dims, 0); /* one element */
    ck_assert_int_eq(rk_request_read_tensor(r, &media->tensors[0].tensor, bytes), 0);
    ck_assert_mem_eq(bytes, "12345678", 8);
    ck_assert_uint_eq(media->tensors[1].tensor.nbytes, 0);
    ck_assert_int_eq(rk_request_read_tensor(r, &media->tensors[1].tensor, bytes), 0);
    rk_request_unref(r);
}
END_TEST

START_TEST(of_a_name_that_repeats_the_last_tensor_counts) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    add_tensor(&item, "a", (tensor_parts){.dtype = "uint8", .bytes = "1", .size = 1});
    add_tensor(&item, "b", (tensor_parts){.dtype = "uint8", .bytes = "2", .size = 1});
    add_tensor(&item, "a", (tensor_parts){.dtype = "uint8", .bytes = "3", .size = 1});
    rk_request *r = accepts(with_item(item), &limits);
    ck_assert_uint_eq(r->media[0].tensor_count, 2);
    ck_assert_str_eq(r->media[0].tensors[0].name.data, "b");
    ck_assert_str_eq(r->media[0].tensors[1].name.data, "a");
    ck_assert_uint_eq(r->media[0].tensors[1].tensor.bytes[0], '3');
    rk_request_unref(r);
}
END_TEST

START_TEST(a_payload_that_comes_later_takes_the_place_of_the_first) {
    rk_buf tensor = tensor_of((tensor_parts){.segment = "one", .nbytes = 9, .offset = 9});
    rk_buf after = tensor_of((tensor_parts){FOUR_BYTES});
    rk_buf item = image((tensor_parts){0});
    raw_message(&item, I(ENCODER_INPUT), tensor);
    raw_message(&item, I(ENCODER_INPUT), after); /* the two merge */
    rk_request *r = accepts(with_item(item), &limits);
    ck_assert_uint_eq(r->segment_count, 0);
    ck_assert_mem_eq(r->media[0].encoder_input.bytes, "\1\2\3\4", 4);
    rk_request_unref(r);
}
END_TEST

START_TEST(tensors_in_one_segment_share_it) {
    rk_buf item = image((tensor_parts){.dtype = "uint8", TWO_BY_TWO, .segment = "/one", .nbytes = 4});
    add_tensor(&item, "a",
               (tensor_parts){.dtype = "uint8", TWO_BY_TWO, .segment = "one", .offset = 8, .nbytes = 4});
    add_tensor(&item, "b", (tensor_parts){.dtype = "uint8", TWO_BY_TWO, .segment = "two", .nbytes = 4});
    rk_request *r = accepts(with_item(item), &limits);
    ck_assert_uint_eq(r->segment_count, 2);
    ck_assert_str_eq(r->segments[0].name.data, "one");
    ck_assert_uint_eq(r->segments[0].size, 12);
    ck_assert_str_eq(r->segments[1].name.data, "two");
    ck_assert_uint_eq(r->segments[1].size, 4);
    const rk_media *media = &r->media[0];
    ck_assert(media->encoder_input.segment == 0 && media->encoder_input.offset == 0);
    ck_assert(media->tensors[0].tensor.segment == 0 && media->tensors[0].tensor.offset == 8);
    ck_assert_uint_eq(media->tensors[1].tensor.segment, 1);
    char bytes[4]; /* nobody has opened them */
    ck_assert_int_eq(rk_request_read_tensor(r, &media->encoder_input, bytes), -ENODATA);
    rk_request_unref(r);
}
END_TEST

START_TEST(encode_workers_are_those_of_their_items) {
    rk_buf buf = with_item(image((tensor_parts){0}));
    add_item(&buf, image((tensor_parts){FOUR_BYTES}));
    add_encoder(&buf, 0, "encode-1", 8999, INT64_MAX);
    rk_request *r = accepts(buf, &prefill);
    ck_assert_uint_eq(r->media_count, 2);
    ck_assert(r->media[0].has_encoder && !r->media[0].has_encoder_input);
    ck_assert_str_eq(r->media[0].encoder_host.data, "encode-1");
    ck_assert_int_eq(r->media[0].encoder_port, 8999);
    ck_assert(r->media[0].encoder_room == INT64_MAX);
    ck_assert(!r->media[1].has_encoder && r->media[1].has_encoder_input);
    rk_request_unref(r);
}
END_TEST

/* ---- what is refused ---- */

static rk_buf with_input(tensor_parts parts) {
    return with_item(image(parts));
}

static const struct {
    tensor_parts input;
    const char *text;
} bad_tensors[] = {
    {{.dtype = "float8", TWO_BY_TWO, .bytes = "1234", .size = 4},
     "mm_inputs.items[0].encoder_input.dtype is \"float8\"; it must be bfloat16, float16, float32 or "
     "float64, an "
     "int or uint of 8, 16, 32 or 64 bits, or bool"},
    {{.dtype = "uint8", TWO_BY_TWO},
     "mm_inputs.items[0].encoder_input has no payload; send inline, shm or remote"},
    {{.dtype = "float32", TWO_BY_TWO, .bytes = "1234", .size = 4},
     "mm_inputs.items[0].encoder_input.inline has 4 bytes; its shape and dtype make 16"},
    {{.dtype = "uint8", TWO_BY_TWO, .bytes = "12345", .size = 5},
     "mm_inputs.items[0].encoder_input.inline has 5 bytes; its shape and dtype make 4"},
    {{.dtype = "uint8", .bytes = "", .size = 0},
     "mm_inputs.items[0].encoder_input.inline has 0 bytes; its shape and dtype make 1"},
    {{.dtype = "uint8", .shape = (const uint8_t *)"\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1", .dims = 17},
     "mm_inputs.items[0].encoder_input.shape has 17 dimensions; at most 16 are possible"},
    {{.dtype = "uint8",
      .shape = (const uint8_t *)"\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f",
      .dims = 16,
      .bytes = "",
      .size = 0},
     "mm_inputs.items[0].encoder_input.shape makes more than 2^40 bytes; no tensor is that large"},
    {{.dtype = "uint8", TWO_BY_TWO, .segment = "a/b", .nbytes = 4},
     "mm_inputs.items[0].encoder_input.shm.name is \"a/b\"; it must be the plain name of a file under "
     "/dev/shm, 1 "
     "to 255 bytes"},
    {{.dtype = "uint8", TWO_BY_TWO, .segment = "//", .nbytes = 4},
     "mm_inputs.items[0].encoder_input.shm.name is \"//\"; it must be the plain name of a file under "
     "/dev/shm, 1 "
     "to 255 bytes"},
    {{.dtype = "uint8", TWO_BY_TWO, .segment = "..", .nbytes = 4},
     "mm_inputs.items[0].encoder_input.shm.name is \"..\"; it must be the plain name of a file under "
     "/dev/shm, 1 "
     "to 255 bytes"},
    {{.dtype = "uint8", TWO_BY_TWO, .segment = "a", .nbytes = 5},
     "mm_inputs.items[0].encoder_input.shm.nbytes is 5; its shape and dtype make 4"},
    {{.dtype = "uint8", TWO_BY_TWO, .segment = "a", .nbytes = 4, .offset = UINT64_MAX},
     "mm_inputs.items[0].encoder_input.shm.offset is 18446744073709551615; no segment is that long"},
    {{.dtype = "uint8", TWO_BY_TWO, .transport = "pigeon", .descriptor = "x", .nbytes = 4},
     "mm_inputs.items[0].encoder_input.remote.transport is \"pigeon\"; nixl is the one that is known here"},
    {{.dtype = "uint8", TWO_BY_TWO, .descriptor = "", .nbytes = 4},
     "mm_inputs.items[0].encoder_input.remote.descriptor is empty; it must say where the tensor is"},
    {{.dtype = "uint8", TWO_BY_TWO, .transport = "nixl", .descriptor = "x", .nbytes = 3},
     "mm_inputs.items[0].encoder_input.remote.nbytes is 3; its shape and dtype make 4"},
};

START_TEST(a_tensor_that_is_none_is_refused_by_name) {
    refuses(with_input(bad_tensors[_i].input), &limits, RK_INVALID_ARGUMENT, bad_tensors[_i].text);
}
END_TEST

START_TEST(a_remote_tensor_is_passed_on_and_only_the_towers) {
    const tensor_parts far = {.dtype = "uint8", TWO_BY_TWO, .descriptor = "where", .nbytes = 4};
    rk_request *r = accepts(with_input(far), &limits);
    const rk_tensor *input = &r->media[0].encoder_input;
    ck_assert_int_eq(input->payload, RK_PAYLOAD_REMOTE);
    ck_assert_uint_eq(input->transport.bytes, 0);
    ck_assert_mem_eq(input->descriptor, "where", input->descriptor_bytes);
    ck_assert_int_eq(rk_request_read_tensor(r, input, (char[4]){0}), -EINVAL);
    rk_request_unref(r);
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    add_tensor(&item, "far", far);
    refuses(
        with_item(item), &limits, RK_INVALID_ARGUMENT,
        "mm_inputs.items[0].model_specific_tensors[\"far\"] is remote; only an encoder_input may be: send it "
        "inline");
}
END_TEST

static const struct {
    uint64_t offset;
    uint64_t length;
    const char *text;
} bad_ranges[] = {
    {0, 0, "mm_inputs.items[0].placeholders[1].length is 0; it must be 1 or more"},
    {3, 2, "mm_inputs.items[0].placeholders[1] is 3 to 4; it must be within the prompt's 4 tokens"},
    {UINT32_MAX, UINT32_MAX,
     "mm_inputs.items[0].placeholders[1] is 4294967295 to 8589934589; it must be within the prompt's 4 "
     "tokens"},
};

START_TEST(placeholders_lie_within_the_prompt) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    add_range(&item, bad_ranges[_i].offset, bad_ranges[_i].length);
    refuses(with_item(item), &limits, RK_INVALID_ARGUMENT, bad_ranges[_i].text);
}
END_TEST

START_TEST(an_item_needs_a_modality_and_a_place) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    raw_uint(&item, I(MODALITY), 4);
    refuses(with_item(item), &limits, RK_INVALID_ARGUMENT,
            "mm_inputs.items[0].modality is 4; it must be 1 (image), 2 (audio) or 3 (video)");
    item = (rk_buf)RK_BUF_INIT;
    raw_uint(&item, I(MODALITY), 1);
    refuses(with_item(item), &limits, RK_INVALID_ARGUMENT,
            "mm_inputs.items[0].placeholders is empty; say where the item is in the prompt");
    rk_buf buf = four_tokens();
    raw_text(&buf, G(MM_INPUTS), "");
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "mm_inputs.items is empty; send an item, or leave mm_inputs out");
}
END_TEST

static const struct {
    unsigned modality;
    const char *grid;
    const char *text; /* NULL: fine */
} grids[] = {
    {RK_MODALITY_IMAGE, "image_grid_thw", NULL},
    {RK_MODALITY_IMAGE, "other", NULL},
    {RK_MODALITY_IMAGE, "video_grid_thw",
     "mm_inputs.items[0].model_specific_tensors has video_grid_thw, but the item's modality is 1"},
    {RK_MODALITY_AUDIO, "other", NULL},
    {RK_MODALITY_AUDIO, "image_grid_thw",
     "mm_inputs.items[0].model_specific_tensors has image_grid_thw, but the item's modality is 2"},
    {RK_MODALITY_VIDEO, "video_grid_thw", NULL},
    {RK_MODALITY_VIDEO, "other",
     "mm_inputs.items[0].model_specific_tensors has no video_grid_thw; a video needs it"},
    {RK_MODALITY_VIDEO, "image_grid_thw",
     "mm_inputs.items[0].model_specific_tensors has image_grid_thw, but the item's modality is 3"},
};

START_TEST(grids_are_those_of_the_modality) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    raw_uint(&item, I(MODALITY), grids[_i].modality);
    add_tensor(&item, grids[_i].grid, (tensor_parts){FOUR_BYTES});
    if (grids[_i].text)
        refuses(with_item(item), &limits, RK_INVALID_ARGUMENT, grids[_i].text);
    else
        rk_request_unref(accepts(with_item(item), &limits));
}
END_TEST

START_TEST(items_of_a_modality_share_their_placeholder) {
    rk_buf items[2];
    for (unsigned i = 0; i < 2; i++) {
        items[i] = image((tensor_parts){FOUR_BYTES});
        raw_uint(&items[i], I(PLACEHOLDER_TOKEN_ID), 5 + i);
    }
    rk_buf buf = with_item(items[0]);
    add_item(&buf, items[1]);
    refuses(
        buf, &limits, RK_INVALID_ARGUMENT,
        "mm_inputs.items[1].placeholder_token_id is 6, but 5 in item 0; items of one modality share theirs");
}
END_TEST

START_TEST(somebody_must_be_able_to_see_an_item) {
    static const char nobody[] =
        "mm_inputs.items[0] has no encoder_input and no encode_bootstrap_info; nobody could see it";
    refuses(with_item(image((tensor_parts){0})), &limits, RK_INVALID_ARGUMENT, nobody);
    refuses(with_item(image((tensor_parts){0})), &prefill, RK_INVALID_ARGUMENT, nobody);
    rk_limits decode = limits;
    decode.role = RK_ROLE_DECODE; /* gets it with the KV */
    rk_request_unref(accepts(with_item(image((tensor_parts){0})), &decode));
    rk_buf item = image((tensor_parts){0});
    raw_text(&item, I(CONTENT_HASH), "");
    refuses(
        with_item(item), &decode, RK_INVALID_ARGUMENT,
        "mm_inputs.items[0].content_hash is empty, and so is encoder_input; without both the item would be "
        "taken for any other");
}
END_TEST

static const struct {
    uint64_t index;
    const char *host;
    uint64_t port;
    uint64_t room;
    const char *text;
} bad_encoders[] = {
    {1, "h", 1, 1,
     "encode_bootstrap_info.items[0].item_index is 1; mm_inputs has 1 items, so it must be below"},
    {0, "", 1, 1, "encode_bootstrap_info.items[0].bootstrap_host is empty; name the encode worker"},
    {0, "a b", 1, 1,
     "encode_bootstrap_info.items[0].bootstrap_host has a space or control character at byte 1; send a host "
     "name "
     "or an address"},
    {0, "h", 0, 1, "encode_bootstrap_info.items[0].bootstrap_port is 0; it must be 1 to 65535"},
    {0, "h", 65536, 1, "encode_bootstrap_info.items[0].bootstrap_port is 65536; it must be 1 to 65535"},
    {0, "h", 1, UINT64_MAX,
     "encode_bootstrap_info.items[0].bootstrap_room is -1; it must be 0 to 9223372036854775807"},
};

START_TEST(an_encode_worker_that_is_none_is_refused_by_name) {
    rk_buf buf = with_input((tensor_parts){FOUR_BYTES});
    add_encoder(&buf, bad_encoders[_i].index, bad_encoders[_i].host, bad_encoders[_i].port,
                bad_encoders[_i].room);
    refuses(buf, &prefill, RK_INVALID_ARGUMENT, bad_encoders[_i].text);
}
END_TEST

START_TEST(encode_workers_are_told_once_an_item_and_only_where_there_are_some) {
    rk_buf buf = with_input((tensor_parts){FOUR_BYTES});
    add_encoder(&buf, 0, "h", 1, 1);
    add_encoder(&buf, 0, "h", 1, 2);
    refuses(buf, &prefill, RK_INVALID_ARGUMENT,
            "encode_bootstrap_info.items[1].item_index is 0 again; one encode worker makes an item");
    buf = four_tokens();
    add_encoder(&buf, 0, "h", 1, 1);
    refuses(buf, &prefill, RK_INVALID_ARGUMENT,
            "encode_bootstrap_info is set, but mm_inputs is not; its items are those of mm_inputs");
    limits.rooms = true;
    buf = with_input((tensor_parts){FOUR_BYTES});
    add_encoder(&buf, 0, "h", 1, 1);
    refuses(
        buf, &limits, RK_FAILED_PRECONDITION,
        "encode_bootstrap_info is set; this worker is aggregated and sees the items itself: leave it out, or "
        "send the call to a prefill worker");
}
END_TEST

/* ---- hostile sizes ---- */

START_TEST(items_and_tensors_are_counted) {
    rk_buf buf = four_tokens();
    for (int i = 0; i < 257; i++)
        add_item(&buf, image((tensor_parts){FOUR_BYTES}));
    refuses(buf, &limits, RK_INVALID_ARGUMENT, "mm_inputs.items has more than 256 entries; send fewer");
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    for (int i = 0; i < 65; i++)
        add_tensor(&item, "a", (tensor_parts){FOUR_BYTES});
    refuses(with_item(item), &limits, RK_INVALID_ARGUMENT,
            "mm_inputs.items.model_specific_tensors has more than 64 entries; send fewer");
}
END_TEST

/* Cut anywhere, and with any byte changed, a message is read or refused in one line. */
START_TEST(no_bytes_do_harm) {
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    add_tensor(&item, "shm", (tensor_parts){.dtype = "uint8", TWO_BY_TWO, .segment = "one", .nbytes = 4});
    rk_buf whole = with_item(item);
    add_encoder(&whole, 0, "host", 1, 1);
    uint64_t random = 99;
    for (size_t round = 0; round < 20000; round++) {
        rk_buf bytes = RK_BUF_INIT;
        rk_request *request = NULL;
        rk_status status;
        rk_buf_append(&bytes, whole.data, round < whole.size ? round : whole.size);
        for (size_t i = 0; round >= whole.size && i < 1 + round % 3; i++)
            bytes.data[random_below(&random, bytes.size)] = (uint8_t)next_random(&random);
        if (decode_generate(&bytes, &prefill, &request, &status) == RK_OK)
            rk_request_unref(request);
        rk_buf_free(&bytes);
    }
    rk_buf_free(&whole);
}
END_TEST

/* ---- bytes that are kept ---- */

static int held;

static void *hold(void *of) {
    held++;
    return of;
}

static void let_go(void *of) {
    (void)of;
    held--;
}

START_TEST(many_bytes_are_kept_where_they_are_and_few_are_copied) {
    static char large[20000];
    for (int many = 0; many < 2; many++) {
        rk_buf item = image((tensor_parts){0}), tensor = RK_BUF_INIT;
        size_t size = many ? sizeof large : 4;
        raw_uint(&tensor, T(SHAPE), size);
        raw_text(&tensor, T(DTYPE), "uint8");
        raw_bytes(&tensor, T(INLINE), large, size);
        raw_message(&item, I(ENCODER_INPUT), tensor);
        rk_buf buf = with_item(item);
        rk_request *r = NULL;
        rk_status status;
        const rk_keeper keeper = {hold, let_go, &held};
        ck_assert_int_eq(
            rk_dialect_tokenspeed.decode_generate(buf.data, buf.size, &limits, &keeper, &r, &status), RK_OK);
        const uint8_t *at = r->media[0].encoder_input.bytes;
        ck_assert((at >= buf.data && at < buf.data + buf.size) == (many == 1));
        ck_assert_int_eq(held, many);
        char copy[sizeof large];
        ck_assert_int_eq(rk_request_read_tensor(r, &r->media[0].encoder_input, copy), 0);
        rk_request_ref(r);
        rk_request_drop_payloads(r);
        ck_assert_int_eq(held, 0);
        ck_assert_int_eq(rk_request_read_tensor(r, &r->media[0].encoder_input, copy), -ENODATA);
        rk_request_drop_payloads(r);
        rk_request_unref(r);
        rk_request_unref(r);
        ck_assert_int_eq(held, 0);
        rk_buf_free(&buf);
    }
}
END_TEST

/* ---- the segments of a refused message ---- */

static char names[256];

static void note(void *context, const char *name) {
    (void)context;
    (void)strncat(names, name, sizeof names - strlen(names) - 1);
    (void)strncat(names, " ", sizeof names - strlen(names) - 1);
}

START_TEST(a_refused_message_s_segments_are_found_as_far_as_it_can_be_read) {
    rk_buf item = image((tensor_parts){.dtype = "no", .segment = "/one", .nbytes = 4});
    add_tensor(&item, "a", (tensor_parts){.segment = "two"});
    add_tensor(&item, "b", (tensor_parts){.segment = "../three"});
    rk_buf buf = with_item(item);
    add_item(&buf, image((tensor_parts){.dtype = "no", .segment = "four", .nbytes = 4}));
    size_t whole = buf.size;
    names[0] = '\0';
    rk_dialect_tokenspeed.each_segment(buf.data, whole, false, note, NULL);
    ck_assert_str_eq(names, "one two four ");
    names[0] = '\0';
    rk_dialect_tokenspeed.each_segment(buf.data, whole - 3, false, note, NULL);
    ck_assert_str_eq(names, "one two "); /* the last piece is cut off */
    names[0] = '\0';
    rk_dialect_tokenspeed.each_segment(buf.data, whole, true, note, NULL);
    ck_assert_str_eq(names, ""); /* it is no Encode */
    rk_dialect_tokenspeed.each_segment(NULL, 0, false, note, NULL);
    rk_buf_free(&buf);
}
END_TEST

#define LOOP(tcase, test, table) tcase_add_loop_test(tcase, test, 0, (int)(sizeof(table) / sizeof(table)[0]))

int main(void) {
    TCase *arrives = tcase_create("arrives");
    tcase_add_checked_fixture(arrives, setup, NULL);
    tcase_add_test(arrives, an_item_arrives_whole);
    tcase_add_test(arrives, of_a_name_that_repeats_the_last_tensor_counts);
    tcase_add_test(arrives, a_payload_that_comes_later_takes_the_place_of_the_first);
    tcase_add_test(arrives, tensors_in_one_segment_share_it);
    tcase_add_test(arrives, encode_workers_are_those_of_their_items);
    tcase_add_test(arrives, many_bytes_are_kept_where_they_are_and_few_are_copied);
    TCase *refused = tcase_create("refused");
    tcase_add_checked_fixture(refused, setup, NULL);
    tcase_set_timeout(refused, 60);
    LOOP(refused, a_tensor_that_is_none_is_refused_by_name, bad_tensors);
    tcase_add_test(refused, a_remote_tensor_is_passed_on_and_only_the_towers);
    LOOP(refused, placeholders_lie_within_the_prompt, bad_ranges);
    tcase_add_test(refused, an_item_needs_a_modality_and_a_place);
    LOOP(refused, grids_are_those_of_the_modality, grids);
    tcase_add_test(refused, items_of_a_modality_share_their_placeholder);
    tcase_add_test(refused, somebody_must_be_able_to_see_an_item);
    LOOP(refused, an_encode_worker_that_is_none_is_refused_by_name, bad_encoders);
    tcase_add_test(refused, encode_workers_are_told_once_an_item_and_only_where_there_are_some);
    tcase_add_test(refused, items_and_tensors_are_counted);
    tcase_add_test(refused, no_bytes_do_harm);
    tcase_add_test(refused, a_refused_message_s_segments_are_found_as_far_as_it_can_be_read);
    Suite *suite = suite_create("dialect_media");
    suite_add_tcase(suite, arrives);
    suite_add_tcase(suite, refused);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
