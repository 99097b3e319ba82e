// The smallest map behind amalgam_map.h: std::unordered_map in stripes, each with a lock.
//
//     g++ -O3 -std=c++17 -shared -fPIC -I include tests/external/striped_map.cc -o libstriped.so

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "amalgam_map.h"

namespace {

constexpr size_t kStripes = 256;

// Keys are kept with their hash, so that a table that grows hashes none again.
struct Key {
    std::string bytes;
    uint64_t hash;
    bool operator==(const Key &other) const { return bytes == other.bytes; }
};

struct HashOfKey {
    size_t operator()(const Key &key) const { return key.hash; }
};

struct alignas(128) Stripe {
    mutable std::mutex lock;
    std::unordered_map<Key, std::string, HashOfKey> items;
    uint64_t bytes = 0;
};

// An item in its chain, without the bytes that its strings hold elsewhere.
constexpr size_t kNode = sizeof(std::pair<const Key, std::string>) + 2 * sizeof(void *);

Key copy_of(const amalgam_map_key &key) {
    return {std::string(reinterpret_cast<const char *>(key.bytes), key.length), key.hash};
}

} // namespace

struct amalgam_map {
    std::array<Stripe, kStripes> stripes;

    // The highest bits: the stripe's own table takes the lowest.
    Stripe &of(const amalgam_map_key &key) { return stripes[key.hash >> 56]; }
};

// Locks need nothing of a thread, so a thread's access is the map itself.
struct amalgam_map_thread {
    amalgam_map *map;
};

extern "C" {

uint32_t amalgam_map_abi(void) { return AMALGAM_MAP_ABI; }

amalgam_map *amalgam_map_create(const amalgam_map_settings *settings, char *error,
                                size_t error_bytes) {
    try {
        auto *map = new amalgam_map;
        for (Stripe &stripe : map->stripes) {
            stripe.items.reserve(settings->expected_items / kStripes);
        }
        return map;
    } catch (const std::exception &failure) {
        std::snprintf(error, error_bytes, "%s", failure.what());
        return nullptr;
    }
}

void amalgam_map_destroy(amalgam_map *map) { delete map; }

amalgam_map_thread *amalgam_map_enter(amalgam_map *map) {
    return new (std::nothrow) amalgam_map_thread{map};
}

void amalgam_map_leave(amalgam_map_thread *thread) { delete thread; }

int amalgam_map_get(amalgam_map_thread *thread, const amalgam_map_key *key,
                    amalgam_map_answer *answer) {
    answer->length = AMALGAM_MAP_MISS;
    try {
        Stripe &stripe = thread->map->of(*key);
        const Key wanted = copy_of(*key);
        std::lock_guard<std::mutex> guard(stripe.lock);
        auto found = stripe.items.find(wanted);
        if (found == stripe.items.end()) {
            return 0;
        }
        answer->length = found->second.size();
        std::memcpy(answer->bytes, found->second.data(), std::min(answer->room, answer->length));
        return 1;
    } catch (const std::bad_alloc &) {
        return 0;
    }
}

int amalgam_map_put(amalgam_map_thread *thread, const amalgam_map_key *key, const uint8_t *value,
                    size_t length) {
    try {
        Stripe &stripe = thread->map->of(*key);
        std::string copy(reinterpret_cast<const char *>(value), length);
        std::lock_guard<std::mutex> guard(stripe.lock);
        auto [place, is_new] = stripe.items.try_emplace(copy_of(*key));
        stripe.bytes += is_new ? kNode + key->length : 0;
        stripe.bytes += length - place->second.size();
        place->second = std::move(copy);
        return 1;
    } catch (const std::bad_alloc &) {
        return 0;
    }
}

int amalgam_map_delete(amalgam_map_thread *thread, const amalgam_map_key *key) {
    try {
        Stripe &stripe = thread->map->of(*key);
        const Key wanted = copy_of(*key);
        std::lock_guard<std::mutex> guard(stripe.lock);
        auto found = stripe.items.find(wanted);
        if (found == stripe.items.end()) {
            return 0;
        }
        stripe.bytes -= kNode + key->length + found->second.size();
        stripe.items.erase(found);
        return 1;
    } catch (const std::bad_alloc &) {
        return 0;
    }
}

uint64_t amalgam_map_items(const amalgam_map *map) {
    uint64_t items = 0;
    for (const Stripe &stripe : map->stripes) {
        std::lock_guard<std::mutex> guard(stripe.lock);
        items += stripe.items.size();
    }
    return items;
}

uint64_t amalgam_map_memory(const amalgam_map *map) {
    uint64_t bytes = sizeof(amalgam_map);
    for (const Stripe &stripe : map->stripes) {
        std::lock_guard<std::mutex> guard(stripe.lock);
        bytes += stripe.bytes + stripe.items.bucket_count() * sizeof(void *);
    }
    return bytes;
}

void amalgam_map_get_batch(amalgam_map_thread *thread, const amalgam_map_key *keys, size_t count,
                           amalgam_map_answer *answers) {
    for (size_t index = 0; index < count; index++) {
        amalgam_map_get(thread, &keys[index], &answers[index]);
    }
}

} // extern "C"
