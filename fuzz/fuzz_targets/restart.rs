//! Memory files of `-e`: bytes as they are, or a file whose head, blocks and end have the right
//! checksums and any contents. What is accepted is saved and accepted again with the same items.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use amalgam_index::Configuration;
use amalgam_index::model::Model;
use amalgam_server::fuzzing::{reload_items, saved_checksum};
use libfuzzer_sys::fuzz_target;

static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
    folder.join(format!("amalgam-fuzz-restart-{}", std::process::id()))
});

/// A file with the parts that `script` says, and right checksums.
fn file(script: &mut Script<'_>) -> Vec<u8> {
    let mut file = b"AMALGAM\n\x01\0\0\0\0\0\0\0model\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    for _ in 0..3 {
        let (low, shift) = (script.number() as u64, script.byte().unwrap_or(0) % 64);
        file.extend_from_slice(&(low << shift).to_le_bytes());
    }
    seal(&mut file, 0);
    let (mut items, blocks) = (0_u64, script.byte().unwrap_or(0) % 4);
    for _ in 0..blocks {
        let (count, mut block) = (script.byte().unwrap_or(0) % 8, Vec::new());
        for _ in 0..count {
            let [key, marks, wrong] = [(); 3].map(|()| script.byte().unwrap_or(0));
            let key_bytes = script.take(usize::from(key));
            let value = script.bytes();
            block.extend_from_slice(&[key_bytes.len() as u8, marks, 0, 0]);
            // Now and then a length is wrong.
            let length = value.len() as u32 + if wrong == 255 { 1 << 31 } else { 0 };
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(&script.number().to_le_bytes());
            let expiry = (script.number() as i64) << (marks >> 4) << 32;
            block.extend_from_slice(&expiry.to_le_bytes());
            block.extend_from_slice(&u64::from(wrong).wrapping_sub(1).to_le_bytes());
            block.extend_from_slice(key_bytes);
            block.extend_from_slice(value);
        }
        file.extend_from_slice(&(block.len() as u32).to_le_bytes());
        file.extend_from_slice(&u32::from(count).to_le_bytes());
        file.extend_from_slice(&saved_checksum(&block).to_le_bytes());
        file.extend_from_slice(&block);
        items += u64::from(count);
    }
    let end = file.len() + 16;
    file.extend_from_slice(&[0; 16]);
    file.extend_from_slice(b"THE END\n");
    file.extend_from_slice(&items.to_le_bytes());
    seal(&mut file, end);
    file
}

/// Appends the checksum of everything from `from` on.
fn seal(file: &mut Vec<u8>, from: usize) {
    let sum = saved_checksum(&file[from..]);
    file.extend_from_slice(&sum.to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let bytes = match script.byte() {
        Some(0) => script.0.to_vec(),
        _ => file(&mut script),
    };
    std::fs::write(&*PATH, &bytes).expect("it is written");
    let configuration =
        Configuration { memory_bytes: 16 << 20, workers: 3, ..Configuration::default() };
    // The blocks are read whole, and the writer has some of one MiB.
    memory::within(16 * bytes.len() + (24 << 20), || {
        if let Ok(items) = reload_items::<Model>(&PATH, &configuration) {
            let again = reload_items::<Model>(&PATH, &configuration);
            assert_eq!(again.expect("it was just written"), items);
        }
    });
    let _ = std::fs::remove_file(&*PATH);
});
