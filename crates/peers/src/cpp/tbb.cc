// TBB's concurrent_hash_map behind a C interface.
#include "common.hh"
#include <tbb/concurrent_hash_map.h>

struct Mix {
    static size_t hash(uint64_t key) { return mix(key); }
    static bool equal(uint64_t left, uint64_t right) { return left == right; }
};
using Map = tbb::concurrent_hash_map<uint64_t, uint64_t, Mix>;

extern "C" {
void* amalgam_tbb_new(size_t items) { return new Map(items); }
void amalgam_tbb_drop(void* map) { delete static_cast<Map*>(map); }
bool amalgam_tbb_get(const void* map, uint64_t key, uint64_t* value) {
    Map::const_accessor found;
    if (!static_cast<const Map*>(map)->find(found, key)) return false;
    *value = found->second;
    return true;
}
void amalgam_tbb_set(void* map, uint64_t key, uint64_t value) {
    Map::accessor place;
    static_cast<Map*>(map)->insert(place, key);
    place->second = value;
}
size_t amalgam_tbb_slots(const void* map) { return static_cast<const Map*>(map)->bucket_count(); }
size_t amalgam_tbb_items(const void* map) { return static_cast<const Map*>(map)->size(); }
}
