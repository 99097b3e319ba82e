// libcuckoo behind a C interface.
#include "common.hh"
#include <libcuckoo/cuckoohash_map.hh>

struct Mix {
    size_t operator()(uint64_t key) const { return mix(key); }
};
using Map = libcuckoo::cuckoohash_map<uint64_t, uint64_t, Mix>;

extern "C" {
void* amalgam_libcuckoo_new(size_t items) {
    auto* map = new Map();
    map->reserve(items);
    return map;
}
void amalgam_libcuckoo_drop(void* map) { delete static_cast<Map*>(map); }
bool amalgam_libcuckoo_get(const void* map, uint64_t key, uint64_t* value) {
    return static_cast<const Map*>(map)->find(key, *value);
}
void amalgam_libcuckoo_set(void* map, uint64_t key, uint64_t value) {
    static_cast<Map*>(map)->insert_or_assign(key, value);
}
size_t amalgam_libcuckoo_slots(const void* map) {
    return static_cast<const Map*>(map)->capacity();
}
size_t amalgam_libcuckoo_items(const void* map) { return static_cast<const Map*>(map)->size(); }
}
