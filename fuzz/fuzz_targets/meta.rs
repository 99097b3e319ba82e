//! Meta commands: each line of the input gets a command in front, chosen by its first byte.
#![no_main]

use libfuzzer_sys::fuzz_target;

const COMMANDS: [&[u8]; 6] = [b"mg k ", b"ms k ", b"md k ", b"ma k ", b"mg ", b"me "];

fuzz_target!(|data: &[u8]| {
    let [cut, lines @ ..] = data else { return };
    let mut input = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        match line {
            [choice, rest @ ..] if usize::from(*choice) < COMMANDS.len() => {
                input.extend_from_slice(COMMANDS[usize::from(*choice)]);
                input.extend_from_slice(rest);
            }
            line => input.extend_from_slice(line),
        }
    }
    amalgam_fuzz::check(&input, usize::from(*cut));
});
