//! Functions that mix 64 bits.

/// A one-to-one function whose output bits each depend on all input bits: the finalizer of
/// SplitMix64, with its increment. [`split_mix64`] is the whole generator.
///
/// Use it for test data and for spreading numbers that no attacker chooses.
#[inline]
#[must_use]
pub const fn mix64(number: u64) -> u64 {
    let x = number.wrapping_add(SPLITMIX_INCREMENT);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The increment of SplitMix64's state for each number: 2^64 divided by the golden ratio.
const SPLITMIX_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Advances the generator SplitMix64 and returns its next 64 bits.
#[inline]
pub const fn split_mix64(state: &mut u64) -> u64 {
    let next = mix64(*state);
    *state = state.wrapping_add(SPLITMIX_INCREMENT);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_split_mix_64() {
        // The first numbers of Vigna's splitmix64.c for the seed 1234567.
        let mut state = 1_234_567;
        let numbers = [(); 3].map(|()| split_mix64(&mut state));
        let wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!(numbers, wanted);
    }
}
