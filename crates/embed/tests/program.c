/* Uses every function of amalgam.h, and checks what each answers. Its argument is an engine. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amalgam.h"

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#define KEYS 150

static amalgam_map *map;

static void single_keys(void) {
    char value[16];
    size_t length = 0;
    uint64_t sum = 0, count = 0;
    CHECK(amalgam_get(map, "a\0b", 3, value, sizeof value, &length) == AMALGAM_NOT_FOUND);
    CHECK(amalgam_set(map, "a\0b", 3, "one", 3, 0) == AMALGAM_OK);
    CHECK(amalgam_get(map, "a\0b", 3, value, sizeof value, &length) == AMALGAM_OK);
    CHECK(length == 3 && memcmp(value, "one", 3) == 0);
    CHECK(amalgam_get(map, "a\0b", 3, value, 2, &length) == AMALGAM_BUFFER_TOO_SHORT);
    CHECK(amalgam_get(map, "a\0b", 3, NULL, 0, &length) == AMALGAM_BUFFER_TOO_SHORT);
    CHECK(length == 3);
    CHECK(amalgam_set(map, "empty", 5, NULL, 0, 3600) == AMALGAM_OK);
    CHECK(amalgam_get(map, "empty", 5, NULL, 0, &length) == AMALGAM_OK && length == 0);
    CHECK(amalgam_expire(map, "empty", 5, 3600) == AMALGAM_OK);
    CHECK(amalgam_expire(map, "absent", 6, 60) == AMALGAM_NOT_FOUND);
    CHECK(amalgam_increment(map, "visits", 6, 40, &sum) == AMALGAM_OK && sum == 40);
    CHECK(amalgam_increment(map, "visits", 6, 2, &sum) == AMALGAM_OK && sum == 42);
    CHECK(amalgam_increment(map, "empty", 5, 2, &sum) == AMALGAM_NOT_A_NUMBER);
    CHECK(amalgam_count(map, &count) == AMALGAM_OK && count == 3);
    CHECK(amalgam_delete(map, "empty", 5) == AMALGAM_OK);
    CHECK(amalgam_delete(map, "empty", 5) == AMALGAM_NOT_FOUND);
}

/* Sets and gets many keys, all of them with the number `thread` in their names. */
static void *many_keys(void *thread) {
    char texts[KEYS][24], buffer[KEYS * 24];
    const void *keys[KEYS + 1];
    size_t lengths[KEYS + 1], offsets[KEYS + 1], found[KEYS + 1], needed = 0, stored = 0, i;
    for (i = 0; i < KEYS; i++) {
        lengths[i] = (size_t)sprintf(texts[i], "%d of %d", (int)i, *(int *)thread);
        keys[i] = texts[i];
    }
    keys[KEYS] = "absent";
    lengths[KEYS] = 6;
    CHECK(amalgam_set_many(map, keys, lengths, keys, lengths, KEYS, 3600, &stored) == AMALGAM_OK);
    CHECK(stored == KEYS);
    CHECK(amalgam_get_many(map, keys, lengths, KEYS + 1, buffer, sizeof buffer, offsets, found,
                           &needed) == AMALGAM_OK);
    for (i = 0; i < KEYS; i++) {
        CHECK(found[i] == lengths[i] && offsets[i] + found[i] <= needed);
        CHECK(memcmp(buffer + offsets[i], texts[i], lengths[i]) == 0);
    }
    CHECK(found[KEYS] == AMALGAM_ABSENT);
    CHECK(amalgam_get_many(map, keys, lengths, KEYS + 1, buffer, needed - 1, offsets, found,
                           &needed) == AMALGAM_BUFFER_TOO_SHORT);
    CHECK(amalgam_get_many(map, keys, lengths, KEYS + 1, buffer, needed, offsets, found,
                           &needed) == AMALGAM_OK);
    return NULL;
}

static void bad_arguments(const char *engine) {
    static char large[1 << 17];
    const void *keys[2] = {"key", NULL};
    size_t lengths[2] = {3, 3}, out[2], found[2], length = 0, stored = 7;
    amalgam_map *other = NULL;
    CHECK(amalgam_get(NULL, "key", 3, large, 1, &length) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_get(map, NULL, 3, large, 1, &length) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_get(map, "key", 3, NULL, 1, &length) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_get(map, "key", 3, large, 1, NULL) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_get(map, "key", 3, large, SIZE_MAX, &length) == AMALGAM_BAD_LENGTH);
    CHECK(amalgam_get(map, "", 0, large, 1, &length) == AMALGAM_KEY_LENGTH);
    CHECK(amalgam_set(map, large, 251, "", 0, 0) == AMALGAM_KEY_LENGTH);
    CHECK(amalgam_set(map, large, SIZE_MAX, "", 0, 0) == AMALGAM_KEY_LENGTH);
    CHECK(amalgam_set(map, "key", 3, "", SIZE_MAX, 0) == AMALGAM_BAD_LENGTH);
    CHECK(amalgam_set(map, "key", 3, large, sizeof large, 0) == AMALGAM_TOO_LARGE);
    CHECK(amalgam_set(map, "key", 3, "value", 5, UINT64_MAX) == AMALGAM_OK);
    CHECK(amalgam_count(map, NULL) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_increment(map, "key", 3, 1, NULL) == AMALGAM_BAD_POINTER);
    CHECK(amalgam_get_many(map, keys, lengths, 2, large, 9, out, found, &length) ==
          AMALGAM_BAD_POINTER);
    CHECK(amalgam_get_many(map, keys, lengths, SIZE_MAX / 8, large, 9, out, found, &length) ==
          AMALGAM_BAD_LENGTH);
    CHECK(amalgam_get_many(map, NULL, NULL, 0, NULL, 0, NULL, NULL, &length) == AMALGAM_OK);
    CHECK(amalgam_set_many(map, keys, lengths, keys, lengths, 2, 0, &stored) ==
          AMALGAM_BAD_POINTER && stored == 1);
    CHECK(amalgam_set_many(map, keys, (size_t *)(large + 1), keys, lengths, 2, 0, &stored) ==
          AMALGAM_BAD_POINTER);
    CHECK(amalgam_open("none", 0, 0, &other) == AMALGAM_UNKNOWN_ENGINE && other == NULL);
    CHECK(amalgam_open("\xff", 0, 0, &other) == AMALGAM_UNKNOWN_ENGINE);
    CHECK(amalgam_open(engine, 1, 0, &other) == AMALGAM_SETTINGS);
    CHECK(amalgam_open(engine, SIZE_MAX, 0, &other) == AMALGAM_SETTINGS && other == NULL);
    CHECK(amalgam_open(engine, SIZE_MAX / 2, 0, &other) == AMALGAM_SETTINGS && other == NULL);
    CHECK(amalgam_open(engine, 0, SIZE_MAX, &other) == AMALGAM_SETTINGS && other == NULL);
    CHECK(amalgam_open(engine, 0, 0, NULL) == AMALGAM_BAD_POINTER);
    amalgam_close(NULL);
}

int main(int count, char **arguments) {
    const char *engine = count > 1 ? arguments[1] : NULL;
    pthread_t threads[3];
    int numbers[3] = {0, 1, 2}, i;
    CHECK(amalgam_open(engine, (size_t)16 << 20, 1 << 16, &map) == AMALGAM_OK);
    single_keys();
    for (i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, many_keys, &numbers[i]) == 0);
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    bad_arguments(engine);
    amalgam_close(map);
    CHECK(strcmp(amalgam_error_text(AMALGAM_KEY_LENGTH), "a key has 1 to 250 bytes") == 0);
    CHECK(strlen(amalgam_error_text(-1)) > 0);
    printf("%s: every check passes\n", amalgam_version());
    return 0;
}
