/* The map of amalgam-index in process: byte strings to byte strings within a bound of memory, with
 * expiry and eviction. Link with -lamalgam_embed. Linux with 64-bit processors.
 *
 * Thread safety: any number of threads may use a map at once, without a lock of their own; only
 * amalgam_close must be the last call that has the map. Operations on one key are linearizable.
 * After fork() only the parent may use or close the maps that it opened.
 *
 * Pointers must be valid for the length next to them until the call returns, and what a function
 * writes must not overlap anything else that it gets. A pointer may be NULL where its length is 0.
 * Keys and values may contain zeros. A key has 1 to 250 bytes: all functions that take a key
 * return AMALGAM_KEY_LENGTH for another.
 *
 * Each function that returns int32_t returns one of the codes below: 0 is success, and after
 * another code the contents of what it would have written are unspecified unless it says
 * otherwise. No function aborts, exits or unwinds into its caller because of its arguments.
 */
#ifndef AMALGAM_H
#define AMALGAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AMALGAM_OK = 0,
    AMALGAM_NOT_FOUND = 1,        /* the key is absent, or its item has expired */
    AMALGAM_BUFFER_TOO_SHORT = 2, /* a value does not fit; its length is told */
    AMALGAM_BAD_POINTER = 3,      /* a pointer is NULL or not aligned */
    AMALGAM_BAD_LENGTH = 4,       /* a length is larger than any object */
    AMALGAM_KEY_LENGTH = 5,       /* a key does not have 1 to 250 bytes */
    AMALGAM_TOO_LARGE = 6,        /* an item is longer than max_item_bytes */
    AMALGAM_FULL = 7,             /* nothing could be evicted in bounded time */
    AMALGAM_NOT_A_NUMBER = 8,     /* the value is not a decimal number below 2^64 */
    AMALGAM_UNKNOWN_ENGINE = 9,   /* no engine has this name */
    AMALGAM_SETTINGS = 10,        /* the memory is too small for such items, or too large */
    AMALGAM_SYSTEM = 11,          /* the system refused the memory or the thread */
    AMALGAM_INTERNAL = 12         /* a defect of the library: do not use the map any more */
};

/* The length that amalgam_get_many writes for a key that is absent. */
#define AMALGAM_ABSENT SIZE_MAX

/* An open map. */
typedef struct amalgam_map amalgam_map;

/* The version of the library. The text is static. */
const char *amalgam_version(void);

/* What a code means, in a line of English; of any number. The text is static. */
const char *amalgam_error_text(int32_t code);

/* Opens an empty map and writes a pointer to it, NULL on failure.
 * engine: "mercury" (the default, also for NULL), "memc3", "hotring-r", "hotring-s" or "pipeline".
 * memory_bytes: the bound of items, index and memory that waits to be reused; 0 means 64 MiB. At
 * the bound items are evicted that have not been used for long.
 * max_item_bytes: the largest item, with about 30 bytes above key and value; 0 means 1 MiB.
 * AMALGAM_SETTINGS is for memory that several of the largest items exceed, and for more memory
 * than an address space can have (2^44 bytes).
 * The map has a background thread, which ends when the map is closed. */
int32_t amalgam_open(const char *engine, size_t memory_bytes, size_t max_item_bytes,
                     amalgam_map **map);

/* Closes a map and frees all that it holds. NULL is allowed. */
void amalgam_close(amalgam_map *map);

/* Copies the value of a key to `value`, and writes its length. If it has more than `capacity`
 * bytes, nothing is copied, the length is written, and AMALGAM_BUFFER_TOO_SHORT returned: call
 * again with a larger buffer. A capacity of 0 asks for the length only. */
int32_t amalgam_get(const amalgam_map *map, const void *key, size_t key_bytes, void *value,
                    size_t capacity, size_t *value_bytes);

/* Stores a value in place of any older one. It expires after ttl_seconds, or up to a second
 * earlier; 0 means never. After AMALGAM_TOO_LARGE or AMALGAM_FULL the older value may be gone. */
int32_t amalgam_set(const amalgam_map *map, const void *key, size_t key_bytes, const void *value,
                    size_t value_bytes, uint64_t ttl_seconds);

/* Removes the item of a key; AMALGAM_NOT_FOUND if there was none. */
int32_t amalgam_delete(const amalgam_map *map, const void *key, size_t key_bytes);

/* Lets the item of a key expire after ttl_seconds from now, or up to a second earlier; 0 counts
 * as 1. */
int32_t amalgam_expire(const amalgam_map *map, const void *key, size_t key_bytes,
                       uint64_t ttl_seconds);

/* Adds delta to the decimal number that is the value of a key, and writes the sum, which wraps at
 * 2^64. An absent key gets the value delta, and never expires; another keeps its time to live. */
int32_t amalgam_increment(const amalgam_map *map, const void *key, size_t key_bytes, uint64_t delta,
                          uint64_t *sum);

/* Writes the number of items. Expired ones count until their memory is reclaimed. */
int32_t amalgam_count(const amalgam_map *map, uint64_t *count);

/* Reads `count` keys: keys[i] has key_bytes[i] bytes. The memory accesses of the keys overlap, so
 * this is several times faster than single reads. Copies the values that are found to `values`, in
 * any order without gaps, and writes for each key the offset of its value and the value's length,
 * or AMALGAM_ABSENT. Writes the bytes of all values found to needed_bytes: if those are more than
 * `capacity`, AMALGAM_BUFFER_TOO_SHORT is returned and not all are copied. Each read is
 * linearizable by itself; together they are not a transaction. */
int32_t amalgam_get_many(const amalgam_map *map, const void *const *keys, const size_t *key_bytes,
                         size_t count, void *values, size_t capacity, size_t *offsets,
                         size_t *value_bytes, size_t *needed_bytes);

/* Stores `count` values as amalgam_set does, in order, until one fails, whose code it returns.
 * Writes how many were stored before, which is the position of the one that failed; only after
 * AMALGAM_BAD_POINTER and AMALGAM_BAD_LENGTH it may not be written. */
int32_t amalgam_set_many(const amalgam_map *map, const void *const *keys, const size_t *key_bytes,
                         const void *const *values, const size_t *value_bytes, size_t count,
                         uint64_t ttl_seconds, size_t *stored);

#ifdef __cplusplus
}
#endif

#endif
