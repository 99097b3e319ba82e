//! Answers of etcd's gateway: any status and body is understood or refused, in memory that is
//! proportional to it.
#![no_main]

use std::sync::LazyLock;

use amalgam_fuzz::memory;
use amalgam_fuzz::script::Script;
use amalgam_node::fuzzing::{etcd, etcd_answer, etcd_state};
use amalgam_node::{ClusterState, Etcd};
use amalgam_protocol::append_base64;
use libfuzzer_sys::fuzz_target;

static ETCD: LazyLock<Etcd> = LazyLock::new(etcd);

const STATUS: [u16; 4] = [200, 401, 404, 503];
const NAMES: [&str; 4] = ["directory", "flush", "alive/1-1", ""];

/// Memory of a byte of JSON: the least a value of it takes.
const FACTOR: usize = 96;

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    append_base64(&mut text, bytes);
    String::from_utf8(text).expect("letters")
}

/// An answer about the cluster's keys, with the values that `script` says.
fn keys(script: &mut Script<'_>) -> String {
    let mut entries = Vec::new();
    while let Some(choice) = script.byte() {
        let name = NAMES[usize::from(choice % 4)];
        let key = encoded(format!("amalgam/default/{name}").as_bytes());
        let value = match choice >> 2 & 3 {
            0 => encoded(script.bytes()),
            1 => {
                let mut state = ClusterState::new(7, 8, 1_000);
                for name in ["a", "b", "c"] {
                    state.join(name, ("here:1", ""), 0).expect("there is room");
                }
                let mut bytes = state.to_bytes();
                let at = script.number() % bytes.len();
                bytes[at] ^= script.byte().unwrap_or(0);
                encoded(&bytes)
            }
            2 => encoded(script.number().to_string().as_bytes()),
            _ => String::from_utf8_lossy(script.bytes()).into_owned(),
        };
        let revision = script.number().to_string();
        entries.push(serde_json::json!({ "key": key, "value": value, "mod_revision": revision }));
    }
    serde_json::json!({ "kvs": entries }).to_string()
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let choice = script.byte().unwrap_or(0);
    let body = match choice & 1 {
        0 => keys(&mut script).into_bytes(),
        _ => script.0.to_vec(),
    };
    LazyLock::force(&ETCD);
    memory::within(FACTOR * body.len() + (16 << 10), || {
        let status = STATUS[usize::from(choice >> 1) % STATUS.len()];
        let answer = etcd_answer(status, &body);
        assert!(status == 200 || answer.is_err(), "no other status is a success");
        let Ok(answer) = answer else { return };
        if let Ok((Some(state), alive)) = etcd_state(&ETCD, &answer) {
            assert!(alive.len() <= body.len(), "every name came in the answer");
            let bytes = state.to_bytes();
            let again = ClusterState::from_bytes(&bytes).expect("what is written is read");
            // A delayed flush has a key of its own.
            assert_eq!(again.snapshot().view, state.snapshot().view);
        }
    });
});
