//! Java's `HashMap<Long, Short>`, which the paper compares with, run by the `java` of this machine.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::ids::arguments::IdsArguments;
use crate::ids::arguments::Structure;
use crate::ids::result::{Round, Run};

const SOURCE: &str = include_str!("HashMapIds.java");
/// The heap in bytes on top of what the map will take.
const SPARE_BYTES: u64 = 512 << 20;

/// Measures Java's map. Its moves are of random ids, some of them twice, and its rounds follow each
/// other without turns.
///
/// # Errors
///
/// If there is no `java`, or it fails.
pub fn measure(arguments: &IdsArguments, expected_bytes: u64) -> anyhow::Result<Run> {
    let folder = std::env::temp_dir().join(format!("amalgam-ids-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("HashMapIds.java");
    fs::write(&file, SOURCE)?;
    let output = Command::new("java")
        .arg(format!("-Xmx{}m", (expected_bytes + SPARE_BYTES) >> 20))
        .args(["-Xmn64m", "-XX:+UseSerialGC"])
        .arg(&file)
        .args(
            [arguments.ids, arguments.migrations(), arguments.gets, arguments.rounds as u64]
                .map(|number| number.to_string()),
        )
        .stderr(Stdio::inherit())
        .output();
    // The source file is not needed any more, whether java succeeded or not.
    let _ = fs::remove_dir_all(&folder);
    let output = output.context("no java on this machine")?;
    ensure!(output.status.success(), "java ended with {}", output.status);
    let mut run = Run::new(Structure::Java, arguments.ids);
    for line in String::from_utf8(output.stdout)?.lines() {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let numbers = numbers.with_context(|| format!("'{line}' from java"))?;
        let [get_ns, migrate_ns, bytes] = numbers[..] else {
            anyhow::bail!("'{line}' from java is not three numbers");
        };
        run.bytes = bytes as u64;
        run.rounds.push(Round { get_ns, migrate_ns });
    }
    ensure!(run.rounds.len() == arguments.rounds, "java measured {} rounds", run.rounds.len());
    Ok(run)
}
