//! Which vector instructions an engine compares with. The comparisons themselves are the engine's:
//! it implements a trait of its own for each of these ways, and calls it through [`each_way`].

/// The fastest way that this processor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fastest {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    Avx2,
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    Neon,
    #[cfg_attr(all(target_arch = "aarch64", not(miri), not(loom)), expect(dead_code))]
    Scalar,
}

impl Fastest {
    /// The fastest instruction set of this processor.
    pub(crate) fn here() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        {
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        // NEON is part of the architecture.
        #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
        return Self::Neon;
        #[cfg(not(all(target_arch = "aarch64", not(miri), not(loom))))]
        Self::Scalar
    }
}

/// The implementation with AVX-512 (BW and VL).
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
pub(crate) struct Avx512;

/// The implementation with AVX2.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
pub(crate) struct Avx2;

/// The implementation with NEON.
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
pub(crate) struct Neon;

/// The implementation without vector instructions, one word after the other: for Miri, loom and
/// other processors.
pub(crate) struct Scalar;

/// Runs an expression with the fastest way as a type.
macro_rules! each_way {
    ($fastest:expr, $name:ident => $action:expr) => {
        match $fastest {
            #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
            $crate::simd::Fastest::Avx512 => {
                type $name = $crate::simd::Avx512;
                $action
            }
            #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
            $crate::simd::Fastest::Avx2 => {
                type $name = $crate::simd::Avx2;
                $action
            }
            #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
            $crate::simd::Fastest::Neon => {
                type $name = $crate::simd::Neon;
                $action
            }
            $crate::simd::Fastest::Scalar => {
                type $name = $crate::simd::Scalar;
                $action
            }
        }
    };
}
pub(crate) use each_way;
