//! The striped comparators, which compare one memory line with one stripe of a key, for all slots
//! at once.
//!
//! Other threads store to these words meanwhile, so ordinary vector loads would be data races.
//! Inline assembly reads them instead, which counts as relaxed loads; the scalar version uses
//! relaxed loads of the language and serves Miri, loom and other processors. The result names
//! candidates: a reader of one loads its locator again and compares the item's key.

use super::layout::{Bucket, KEYS, LOCATORS, Line, Pattern};
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
use crate::simd::Neon;
use crate::simd::Scalar;
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
use crate::simd::{Avx2, Avx512};
use crate::sync::Ordering;

/// The bit at which the tag (key length and check byte) begins in a locator.
const TAG_SHIFT: u32 = 48;

/// One implementation of the comparators.
pub(super) trait Compare {
    /// A bit for each slot whose stripe equals `stripe`.
    fn equal<const SLOTS: usize>(line: &Line<SLOTS>, stripe: u64) -> u32;

    /// A bit for each slot whose locator has this tag.
    fn tagged<const SLOTS: usize>(line: &Line<SLOTS>, tag: u64) -> u32;

    /// A bit for each slot of a bucket that may hold the key. The work depends only on the length
    /// of the key: every slot is compared in every line that the key covers.
    #[inline]
    fn candidates<const SLOTS: usize>(bucket: &Bucket<SLOTS>, pattern: &Pattern) -> u32 {
        let mut candidates = Self::tagged(&bucket[LOCATORS], pattern.tag);
        let lines = bucket[KEYS..].iter().zip(&pattern.stripes);
        for (line, stripe) in lines.take(pattern.lines) {
            candidates &= Self::equal(line, *stripe);
        }
        candidates
    }
}

impl Compare for Scalar {
    #[inline]
    fn equal<const SLOTS: usize>(line: &Line<SLOTS>, stripe: u64) -> u32 {
        let slots = line.iter().enumerate();
        slots.fold(0, |answer, (slot, word)| {
            answer | u32::from(word.load(Ordering::Relaxed) == stripe) << slot
        })
    }

    #[inline]
    fn tagged<const SLOTS: usize>(line: &Line<SLOTS>, tag: u64) -> u32 {
        let slots = line.iter().enumerate();
        slots.fold(0, |answer, (slot, word)| {
            answer | u32::from(word.load(Ordering::Relaxed) >> TAG_SHIFT == tag) << slot
        })
    }
}

/// The comparison on registers of either width: a bit for each of the words at `$start` that,
/// shifted right by `$shift`, equals `$wanted`. It uses registers from 16 up, so that surrounding
/// SSE code pays no transition penalty.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
macro_rules! compare_wide {
    ($register:literal, $pointer:literal, $start:expr, $wanted:expr, $shift:expr) => {{
        let answer: u32;
        std::arch::asm!(
            concat!("vpbroadcastq ", $register, "16, {wanted}"),
            concat!("vpsrlq ", $register, "17, ", $pointer, " ptr [{start}], {shift}"),
            concat!("vpcmpeqq k1, ", $register, "16, ", $register, "17"),
            "kmovw {answer:e}, k1",
            wanted = in(reg) $wanted,
            start = in(reg) $start,
            shift = const $shift,
            answer = lateout(reg) answer,
            out("xmm16") _, out("xmm17") _, out("k1") _,
            options(nostack, readonly, preserves_flags),
        );
        answer
    }};
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Avx512 {
    #[inline]
    fn shifted<const SLOTS: usize, const SHIFT: u32>(line: &Line<SLOTS>, wanted: u64) -> u32 {
        let mut answer = 0;
        for (place, words) in line.chunks(8).enumerate() {
            let start = words.as_ptr();
            // SAFETY: the code reads only words of the line: 8 of them, or 4 if the line has no
            // more. The processor has the instructions (`Fastest::here`). A compiler without the
            // target feature does not use k1, zmm16 and zmm17; one with it is told that they
            // change.
            answer |= unsafe {
                match words.len() {
                    8 => compare_wide!("zmm", "zmmword", start, wanted, SHIFT),
                    4 => compare_wide!("ymm", "ymmword", start, wanted, SHIFT),
                    _ => unreachable!("lines have 4, 8 or 16 slots"),
                }
            } << (8 * place);
        }
        answer
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Compare for Avx512 {
    #[inline]
    fn equal<const SLOTS: usize>(line: &Line<SLOTS>, stripe: u64) -> u32 {
        Self::shifted::<SLOTS, 0>(line, stripe)
    }

    #[inline]
    fn tagged<const SLOTS: usize>(line: &Line<SLOTS>, tag: u64) -> u32 {
        Self::shifted::<SLOTS, TAG_SHIFT>(line, tag)
    }
}

/// This version compares four slots at a time.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Avx2 {
    #[inline]
    fn shifted<const SLOTS: usize, const SHIFT: u32>(line: &Line<SLOTS>, wanted: u64) -> u32 {
        let mut answers = 0;
        for (place, words) in line.chunks_exact(4).enumerate() {
            let answer: u32;
            // SAFETY: the code reads only four words of the line; the processor has the
            // instructions (`Fastest::here`). The upper halves of the registers are cleared, so
            // surrounding SSE code pays no transition penalty.
            unsafe {
                std::arch::asm!(
                    "vmovq xmm0, {wanted}",
                    "vpbroadcastq ymm0, xmm0",
                    "vmovdqu ymm1, ymmword ptr [{start}]",
                    "vpsrlq ymm1, ymm1, {shift}",
                    "vpcmpeqq ymm1, ymm0, ymm1",
                    "vmovmskpd {answer:e}, ymm1",
                    "vzeroupper",
                    wanted = in(reg) wanted,
                    start = in(reg) words.as_ptr(),
                    shift = const SHIFT,
                    answer = lateout(reg) answer,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                    out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                    out("xmm14") _, out("xmm15") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            answers |= answer << (4 * place);
        }
        answers
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Compare for Avx2 {
    #[inline]
    fn equal<const SLOTS: usize>(line: &Line<SLOTS>, stripe: u64) -> u32 {
        Self::shifted::<SLOTS, 0>(line, stripe)
    }

    #[inline]
    fn tagged<const SLOTS: usize>(line: &Line<SLOTS>, tag: u64) -> u32 {
        Self::shifted::<SLOTS, TAG_SHIFT>(line, tag)
    }
}

/// The comparison of four slots; `$shift` are the instructions between load and comparison.
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
macro_rules! compare_four {
    ($start:expr, $wanted:expr, $($shift:literal),*) => {{
        let answer: u64;
        std::arch::asm!(
            "ldp {low:q}, {high:q}, [{start}]",
            $($shift,)*
            "dup {wide:v}.2d, {wanted}",
            "cmeq {low:v}.2d, {low:v}.2d, {wide:v}.2d",
            "cmeq {high:v}.2d, {high:v}.2d, {wide:v}.2d",
            "uzp1 {low:v}.4s, {low:v}.4s, {high:v}.4s",
            "xtn {low:v}.4h, {low:v}.4s",
            "fmov {answer}, {low:d}",
            wanted = in(reg) $wanted,
            start = in(reg) $start,
            low = out(vreg) _,
            high = out(vreg) _,
            wide = out(vreg) _,
            answer = lateout(reg) answer,
            options(nostack, readonly, preserves_flags),
        );
        answer
    }};
}

/// This version compares four slots at a time.
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
impl Neon {
    /// A bit for each slot, of the 16 bits that `four` returns for each of four slots.
    #[inline]
    fn by_fours<const SLOTS: usize>(line: &Line<SLOTS>, four: impl Fn(*const u8) -> u64) -> u32 {
        /// The first bit of the first lane, the second of the second, and so on.
        const BITS: u64 = 0x0008_0004_0002_0001;
        let mut answers = 0;
        for (place, words) in line.chunks_exact(4).enumerate() {
            let bits = four(words.as_ptr().cast()) & BITS;
            // The highest lane is the sum of all.
            let sum = bits.wrapping_mul(0x0001_0001_0001_0001) >> 48;
            answers |= (sum as u32) << (4 * place);
        }
        answers
    }
}

#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
impl Compare for Neon {
    #[inline]
    fn equal<const SLOTS: usize>(line: &Line<SLOTS>, stripe: u64) -> u32 {
        // SAFETY: reads four words of the line. All processors of this architecture have the
        // instructions.
        Self::by_fours(line, |start| unsafe { compare_four!(start, stripe,) })
    }

    #[inline]
    fn tagged<const SLOTS: usize>(line: &Line<SLOTS>, tag: u64) -> u32 {
        // SAFETY: as above. The number is `TAG_SHIFT`.
        Self::by_fours(line, |start| unsafe {
            compare_four!(
                start,
                tag,
                "ushr {low:v}.2d, {low:v}.2d, #48",
                "ushr {high:v}.2d, {high:v}.2d, #48"
            )
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    use crate::simd::Fastest;
    use crate::sync::AtomicU64;

    fn all_ways_agree<const SLOTS: usize>() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
            // Few different words, so that some are equal.
            let line: Line<SLOTS> =
                std::array::from_fn(|_| AtomicU64::new(((draw() % 3) << TAG_SHIFT) | (draw() % 3)));
            let tag = draw() % 3;
            let word = (tag << TAG_SHIFT) | (draw() % 3);
            let expected = [Scalar::equal(&line, word), Scalar::tagged(&line, tag)];
            for (slot, found) in line.iter().enumerate() {
                let found = found.load(Ordering::Relaxed);
                assert_eq!(expected[0] >> slot & 1 == 1, found == word);
                assert_eq!(expected[1] >> slot & 1 == 1, found >> TAG_SHIFT == tag);
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            assert_eq!([Neon::equal(&line, word), Neon::tagged(&line, tag)], expected);
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                if is_x86_feature_detected!("avx2") {
                    assert_eq!([Avx2::equal(&line, word), Avx2::tagged(&line, tag)], expected);
                }
                if Fastest::here() == Fastest::Avx512 {
                    assert_eq!([Avx512::equal(&line, word), Avx512::tagged(&line, tag)], expected);
                }
            }
        }
    }

    #[test]
    fn all_ways_of_comparing_agree() {
        all_ways_agree::<4>();
        all_ways_agree::<8>();
        all_ways_agree::<16>();
    }
}
