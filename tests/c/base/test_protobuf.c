/* Protobuf as it is written: integers, and messages whose length is known at their end. */
#include "base/protobuf.h"

#include "tw_test.h"

TW_TEST(varints_are_as_protobuf_has_them) {
    static const struct { uint64_t value; size_t len; uint8_t bytes[10]; } cases[] = {
        {0, 1, {0}}, {127, 1, {0x7f}}, {128, 2, {0x80, 1}}, {300, 2, {0xac, 2}},
        {UINT64_MAX, 10, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[10];
        TW_CHECK_EQ(cases[i].len, tw_put_varint(bytes, cases[i].value) - bytes);
        TW_CHECK_MEM(cases[i].bytes, bytes, cases[i].len);
    }
}

TW_TEST(a_message_takes_the_length_that_it_needs) {
    for (size_t len = 0; len < 20000; len = len * 2 + 1) {
        static uint8_t bytes[20100], expected[20100];
        uint8_t *message = tw_proto_open(bytes, 3);
        memset(message, 'x', len);
        uint8_t *end = tw_proto_close(message, message + len);
        uint8_t *p = tw_put_varint(tw_put_tag(expected, 3, TW_WIRE_BYTES), len);
        memset(p, 'x', len);
        TW_CHECK_EQ(p + len - expected, end - bytes);
        TW_CHECK_MEM(expected, bytes, (size_t)(p + len - expected));
    }
}

TW_TEST(lengths_are_as_short_as_they_can_be) {
    static const size_t lengths[] = {0, 1, 127, 128, 16383, 16384, 70000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tw_buffer b = {0};
        size_t at = tw_pb_open_delimited(&b);
        for (size_t k = 0; k < lengths[i]; k++) tw_buffer_put(&b, &"0123456789"[k % 10], 1);
        tw_pb_close(&b, at);
        uint8_t expected[TW_VARINT_MOST];
        size_t n = (size_t)(tw_put_varint(expected, lengths[i]) - expected);
        TW_CHECK_EQ(n + lengths[i], b.length);
        TW_CHECK_MEM(expected, b.data, n);
        for (size_t k = 0; k < lengths[i]; k++)
            if (b.data[n + k] != "0123456789"[k % 10]) TW_CHECK_EQ(k, lengths[i]);
        tw_buffer_free(&b);
    }
}

TW_TEST(signed_integers_are_zigzag) {
    TW_CHECK_EQ(0, tw_zigzag(0));
    TW_CHECK_EQ(1, tw_zigzag(-1));
    TW_CHECK_EQ(2, tw_zigzag(1));
    TW_CHECK_EQ(UINT64_MAX, tw_zigzag(INT64_MIN));
    TW_CHECK_EQ(UINT64_MAX - 1, tw_zigzag(INT64_MAX));
}
