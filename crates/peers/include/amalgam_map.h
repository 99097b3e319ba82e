/*
 * amalgam_map.h: a concurrent map of yours behind Amalgam's benchmark driver.
 *
 * Build a shared library that defines the functions below with C linkage, and measure it with
 * the engines and the other peers, on the same requests, in turns:
 *
 *     amalgam-peers bench index --engine external:./libmine.so,mercury,memc3 --workload c
 *
 * Rules:
 *  1. Every function may be called by several threads at once, except create and destroy, and
 *     except calls with the same amalgam_map_thread, which belong to the thread that entered.
 *  2. Keys and values are any bytes. They belong to the caller, and only during the call.
 *  3. No exception, longjmp or signal leaves a function.
 *  4. What can fail answers so. Nothing here may end the process.
 */
#ifndef AMALGAM_MAP_H
#define AMALGAM_MAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A change that breaks libraries makes it another. */
#define AMALGAM_MAP_ABI 1

/* Your map, and a thread's access to it. */
typedef struct amalgam_map amalgam_map;
typedef struct amalgam_map_thread amalgam_map_thread;

/* What a map is built for. Later versions of the interface may add fields at the end. */
typedef struct amalgam_map_settings {
    uint64_t settings_bytes; /* sizeof(amalgam_map_settings) of the caller */
    uint64_t expected_items; /* how many items to make room for; more must find room too */
    uint64_t threads;        /* how many threads enter at once, at most */
    uint64_t memory_bytes;   /* memory that items and table should not exceed; advice */
} amalgam_map_settings;

typedef struct amalgam_map_key {
    const uint8_t *bytes;
    size_t length;
    uint64_t hash; /* of the bytes, 64 good bits; take it or hash yourself */
} amalgam_map_key;

/* Where a value that is read goes. */
typedef struct amalgam_map_answer {
    uint8_t *bytes; /* copy the value here, at most `room` bytes of it */
    size_t room;
    size_t length; /* set this to the value's length, or to AMALGAM_MAP_MISS */
} amalgam_map_answer;

#define AMALGAM_MAP_MISS SIZE_MAX

/* ---- Required ---- */

/* Answers AMALGAM_MAP_ABI as the library saw it. Called before all others. */
uint32_t amalgam_map_abi(void);

/* An empty map, or NULL with a text of at most `error_bytes` (its end included) in `error`. */
amalgam_map *amalgam_map_create(const amalgam_map_settings *settings, char *error,
                                size_t error_bytes);

/* Ends a map. All threads have left it. */
void amalgam_map_destroy(amalgam_map *map);

/* Registers the calling thread; NULL if it cannot be. Sessions, epochs and pools belong here. */
amalgam_map_thread *amalgam_map_enter(amalgam_map *map);

/* The calling thread's last call with `thread`. */
void amalgam_map_leave(amalgam_map_thread *thread);

/* Reads: 1 if the key is there, and `answer` filled in; 0 if not. */
int amalgam_map_get(amalgam_map_thread *thread, const amalgam_map_key *key,
                    amalgam_map_answer *answer);

/* Writes over whatever is there: 1 if it is there now, 0 if there is no room. */
int amalgam_map_put(amalgam_map_thread *thread, const amalgam_map_key *key, const uint8_t *value,
                    size_t length);

/* Deletes: 1 if the key was there, 0 if not. */
int amalgam_map_delete(amalgam_map_thread *thread, const amalgam_map_key *key);

/* Items in the map and bytes that it has taken, roughly; 0 where that is not known. */
uint64_t amalgam_map_items(const amalgam_map *map);
uint64_t amalgam_map_memory(const amalgam_map *map);

/* ---- Optional: a library without them is measured all the same ---- */

/* Reads `count` keys and fills in as many answers. Without it, keys are read one by one. */
void amalgam_map_get_batch(amalgam_map_thread *thread, const amalgam_map_key *keys, size_t count,
                           amalgam_map_answer *answers);

/* Called between operations, every few hundred of them: the thread holds nothing. */
void amalgam_map_quiesce(amalgam_map_thread *thread);

#ifdef __cplusplus
}
#endif

#endif
