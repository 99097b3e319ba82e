//! Comparing a tag with all slots of two buckets at once.
//!
//! Other threads store to these words meanwhile, so ordinary vector loads would be data races.
//! Inline assembly reads them instead, which counts as relaxed loads; the scalar version does
//! the same in Rust and serves Miri, loom and other processors. Either way the answer is a hint: a
//! caller that follows a slot loads its word again, and a miss counts only after validation.

use super::table::Bucket;
use super::word::{Tag, Word};
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
use crate::simd::Neon;
use crate::simd::Scalar;
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
use crate::simd::{Avx2, Avx512};
use crate::sync::Ordering;

/// A set of instructions to compare with.
pub(super) trait Probe {
    /// Each slot has `1 << SHIFT` bits in the answer.
    const SHIFT: u32;

    /// The bits of each slot with `tag` are set; the first bucket's are below the second's.
    fn matches<const SLOTS: usize>(first: &Bucket<SLOTS>, second: &Bucket<SLOTS>, tag: Tag) -> u64;
}

impl Probe for Scalar {
    const SHIFT: u32 = 0;

    #[inline]
    fn matches<const SLOTS: usize>(first: &Bucket<SLOTS>, second: &Bucket<SLOTS>, tag: Tag) -> u64 {
        let mut answer = 0;
        for slot in 0..SLOTS {
            let words = [first, second].map(|bucket| Word(bucket[slot].load(Ordering::Relaxed)));
            answer |= u64::from(words[0].tag() == tag) << slot;
            answer |= u64::from(words[1].tag() == tag) << (slot + SLOTS);
        }
        answer
    }
}

/// Two compares with a memory operand. Registers 16 and up, so that code for older processors
/// around it pays no penalty.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Probe for Avx512 {
    const SHIFT: u32 = 2;

    #[inline]
    fn matches<const SLOTS: usize>(first: &Bucket<SLOTS>, second: &Bucket<SLOTS>, tag: Tag) -> u64 {
        /// The tag is the highest of a word's four lanes of 16 bits.
        const TAG_LANES: u64 = 0x8888_8888_8888_8888;
        let answer: u64;
        // SAFETY: reads the two buckets only, which are as long as a register (two for SLOTS = 4).
        // The processor has the instructions (`Fastest::here`). Without the feature the compiler
        // does not use k1 to k3 and zmm16; with it, it is told that they change.
        unsafe {
            if SLOTS == 8 {
                std::arch::asm!(
                    "vpbroadcastw zmm16, {tag:e}",
                    "kmovq k3, {lanes}",
                    "vpcmpeqw k1{{k3}}, zmm16, zmmword ptr [{first}]",
                    "vpcmpeqw k2{{k3}}, zmm16, zmmword ptr [{second}]",
                    "kunpckdq k1, k2, k1",
                    "kmovq {answer}, k1",
                    tag = in(reg) u32::from(tag.0),
                    lanes = in(reg) TAG_LANES,
                    first = in(reg) first.as_ptr(),
                    second = in(reg) second.as_ptr(),
                    answer = lateout(reg) answer,
                    out("xmm16") _, out("k1") _, out("k2") _, out("k3") _,
                    options(nostack, readonly, preserves_flags),
                );
            } else {
                std::arch::asm!(
                    "vpbroadcastw ymm16, {tag:e}",
                    "kmovd k3, {lanes:e}",
                    "vpcmpeqw k1{{k3}}, ymm16, ymmword ptr [{first}]",
                    "vpcmpeqw k2{{k3}}, ymm16, ymmword ptr [{second}]",
                    "kunpckwd k1, k2, k1",
                    "kmovd {answer:e}, k1",
                    tag = in(reg) u32::from(tag.0),
                    lanes = in(reg) TAG_LANES,
                    first = in(reg) first.as_ptr(),
                    second = in(reg) second.as_ptr(),
                    answer = lateout(reg) answer,
                    out("xmm16") _, out("k1") _, out("k2") _, out("k3") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
        answer
    }
}

/// Four slots at a time.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Avx2 {
    /// A bit for each of four slots from `start` on.
    ///
    /// # Safety
    ///
    /// 32 bytes of atomics at `start`; the processor has AVX2.
    #[inline]
    unsafe fn four(start: *const u8, tag: Tag) -> u64 {
        let answer: u64;
        // SAFETY: the caller's contract. The upper halves are cleared, so code for older processors
        // around it pays no penalty.
        unsafe {
            std::arch::asm!(
                "vmovq xmm0, {tag}",
                "vpbroadcastq ymm0, xmm0",
                // Two steps: a shift with a memory operand is one of AVX-512.
                "vmovdqu ymm1, ymmword ptr [{start}]",
                "vpsrlq ymm1, ymm1, 48",
                "vpcmpeqq ymm1, ymm0, ymm1",
                "vmovmskpd {answer:e}, ymm1",
                "vzeroupper",
                tag = in(reg) u64::from(tag.0),
                start = in(reg) start,
                answer = lateout(reg) answer,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
                out("xmm15") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        answer
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
impl Probe for Avx2 {
    const SHIFT: u32 = 0;

    #[inline]
    fn matches<const SLOTS: usize>(first: &Bucket<SLOTS>, second: &Bucket<SLOTS>, tag: Tag) -> u64 {
        let mut answer = 0;
        for (place, bucket) in [first, second].into_iter().enumerate() {
            for four in 0..SLOTS / 4 {
                let start = bucket[4 * four..].as_ptr().cast();
                // SAFETY: `start` has four slots; the processor has AVX2 (`Fastest::here`).
                answer |= unsafe { Self::four(start, tag) } << (place * SLOTS + 4 * four);
            }
        }
        answer
    }
}

/// Each `uzp2` keeps the lanes with odd numbers of two registers, so that after two of them only
/// the tags are left: the highest of a word's four lanes.
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
impl Probe for Neon {
    const SHIFT: u32 = 2;

    #[inline]
    fn matches<const SLOTS: usize>(first: &Bucket<SLOTS>, second: &Bucket<SLOTS>, tag: Tag) -> u64 {
        let answer: u64;
        // SAFETY: reads the two buckets only, of 64 bytes or, for SLOTS = 4, of 32. All processors
        // of this architecture have the instructions.
        unsafe {
            if SLOTS == 8 {
                std::arch::asm!(
                    "ldp {a:q}, {b:q}, [{first}]",
                    "ldp {c:q}, {d:q}, [{first}, #32]",
                    "uzp2 {a:v}.8h, {a:v}.8h, {b:v}.8h",
                    "uzp2 {c:v}.8h, {c:v}.8h, {d:v}.8h",
                    "uzp2 {a:v}.8h, {a:v}.8h, {c:v}.8h",
                    "ldp {b:q}, {c:q}, [{second}]",
                    "ldp {d:q}, {wanted:q}, [{second}, #32]",
                    "uzp2 {b:v}.8h, {b:v}.8h, {c:v}.8h",
                    "uzp2 {d:v}.8h, {d:v}.8h, {wanted:v}.8h",
                    "uzp2 {b:v}.8h, {b:v}.8h, {d:v}.8h",
                    "dup {wanted:v}.8h, {tag:w}",
                    "cmeq {a:v}.8h, {a:v}.8h, {wanted:v}.8h",
                    "cmeq {b:v}.8h, {b:v}.8h, {wanted:v}.8h",
                    // A byte a slot, then half a byte.
                    "uzp1 {a:v}.16b, {a:v}.16b, {b:v}.16b",
                    "shrn {a:v}.8b, {a:v}.8h, #4",
                    "fmov {answer}, {a:d}",
                    tag = in(reg) u32::from(tag.0),
                    first = in(reg) first.as_ptr(),
                    second = in(reg) second.as_ptr(),
                    answer = lateout(reg) answer,
                    a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
                    wanted = out(vreg) _,
                    options(nostack, readonly, preserves_flags),
                );
            } else {
                std::arch::asm!(
                    "ldp {a:q}, {b:q}, [{first}]",
                    "ldp {c:q}, {d:q}, [{second}]",
                    "uzp2 {a:v}.8h, {a:v}.8h, {b:v}.8h",
                    "uzp2 {c:v}.8h, {c:v}.8h, {d:v}.8h",
                    "uzp2 {a:v}.8h, {a:v}.8h, {c:v}.8h",
                    "dup {b:v}.8h, {tag:w}",
                    "cmeq {a:v}.8h, {a:v}.8h, {b:v}.8h",
                    "xtn {a:v}.8b, {a:v}.8h",
                    "shrn {a:v}.8b, {a:v}.8h, #4",
                    "fmov {answer:w}, {a:s}",
                    tag = in(reg) u32::from(tag.0),
                    first = in(reg) first.as_ptr(),
                    second = in(reg) second.as_ptr(),
                    answer = lateout(reg) answer,
                    a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
        answer
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    use crate::simd::Fastest;
    use crate::sync::AtomicU64;

    #[repr(align(64))]
    struct Line<const SLOTS: usize>(Bucket<SLOTS>);

    fn slots<P: Probe, const SLOTS: usize>(
        first: &Line<SLOTS>,
        second: &Line<SLOTS>,
        tag: Tag,
    ) -> Vec<usize> {
        let answer = P::matches(&first.0, &second.0, tag);
        (0..2 * SLOTS).filter(|slot| answer >> (slot << P::SHIFT) & slot_mask::<P>() != 0).collect()
    }

    fn slot_mask<P: Probe>() -> u64 {
        (1 << (1 << P::SHIFT)) - 1
    }

    fn all_ways_agree<const SLOTS: usize>() {
        let mut random = 88_172_645_463_325_252;
        for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let mut line = || {
                Line::<SLOTS>(std::array::from_fn(|_| {
                    let bits = super::super::path::next_random(&mut random);
                    let word = match bits % 4 {
                        0 => Word::EMPTY,
                        1 => Word::MOVED,
                        _ => Word::new(Tag((bits >> 8) as u16 % 6 + 1), (bits >> 16) + 1),
                    };
                    AtomicU64::new(word.0)
                }))
            };
            let (first, second) = (line(), line());
            let tag = Tag(round % 7 + 1);
            let expected = slots::<Scalar, SLOTS>(&first, &second, tag);
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                if is_x86_feature_detected!("avx2") {
                    assert_eq!(slots::<Avx2, SLOTS>(&first, &second, tag), expected);
                }
                if Fastest::here() == Fastest::Avx512 {
                    assert_eq!(slots::<Avx512, SLOTS>(&first, &second, tag), expected);
                }
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            assert_eq!(slots::<Neon, SLOTS>(&first, &second, tag), expected);
            for slot in 0..2 * SLOTS {
                let line = if slot < SLOTS { &first } else { &second };
                let word = Word(line.0[slot % SLOTS].load(Ordering::Relaxed));
                assert_eq!(expected.contains(&slot), word.tag() == tag);
            }
        }
    }

    #[test]
    fn all_ways_of_comparing_agree() {
        all_ways_agree::<4>();
        all_ways_agree::<8>();
    }
}
