// What the C++ peers share: the hash of an eight-byte key, as src/fixed.rs has it.
#pragma once
#include <cstddef>
#include <cstdint>

inline uint64_t mix(uint64_t key) {
    unsigned __int128 product =
        static_cast<unsigned __int128>(key ^ 0x243f6a8885a308d3ULL) * 0x9e3779b97f4a7c15ULL;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
