//! `bench trace` at toy size, against a server in this process: formats, counts, resumption.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use amalgam_bench::replay::{Format, ReplayArguments, ServerResult, Trace, run};
use amalgam_index::Configuration;
use amalgam_index::model::Model;
use amalgam_server::{Server, Settings};
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: ReplayArguments,
}

fn arguments(line: &[&str]) -> ReplayArguments {
    Line::try_parse_from([&["trace"], line].concat()).expect("valid").arguments
}

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("amalgam-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for files");
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    Trace::read(path, &arguments(&["x", "--requests", "1k", "--keys", "50"]).reading())
}

#[test]
fn every_format_is_read() {
    let folder = Folder::new("formats");
    let three = [7u32, 9, 7];
    let big: Vec<u8> = three.iter().flat_map(|key| key.to_be_bytes()).collect();
    let little: Vec<u8> = three.iter().flat_map(|key| key.to_le_bytes()).collect();
    let oracle: Vec<u8> = three
        .iter()
        .flat_map(|key| [&[0; 4][..], &key.to_le_bytes(), &[0; 4], &[5, 0, 0, 0], &[0; 8]].concat())
        .collect();
    // printf '1 7 5\n2 9 5\n3 7 5\n' | xz -C crc32 (and zstd)
    let xz = b"\xfd7zXZ\0\0\x01i\"\xde6\x02\0!\x01\x16\0\0\0t/\xe5\xa3\x01\0\x111 7 5\n2 9 5\n\
               3 7 5\n\0\0\0";
    assert!(read(&folder.file("cut.xz", xz)).is_err(), "a file that is cut off");
    let zstd = b"\x28\xb5\x2f\xfd\x04\x58\x91\0\x001 7 5\n2 9 5\n3 7 5\n\xff";
    assert!(read(&folder.file("cut.zst", zstd)).is_err(), "a file that is cut off");
    let dump = "key=a exp=-1 la=5 cas=2 fetch=no cls=1 size=70\n\
                key=b%20 exp=-1 la=6 cas=3 fetch=yes cls=1 size=66\nEND\n";
    let cases: [(&str, &[u8], Format, Option<u32>); 7] = [
        ("a.trace", &big, Format::Int32Be, None),
        ("b.trace", &little, Format::Int32Le, None),
        ("c.oracleGeneral.bin", &oracle, Format::OracleGeneral, Some(5)),
        ("d.txt", b"1 7 5\n2 9 5\n3 7 5\n", Format::Text, Some(5)),
        ("e.lis", b"7 1 0 0\n9 1 0 1\n7 1 0 2\n", Format::Arc, None),
        ("f.jsonl", b"{\"hash_ids\":[7,9]}\n{\"hash_ids\":[7]}\n", Format::Mooncake, None),
        ("g.dump", dump.as_bytes(), Format::Metadump, Some(5)),
    ];
    for (name, bytes, format, size) in cases {
        let trace = read(&folder.file(name, bytes)).expect("it is whole");
        assert_eq!((trace.format, trace.keys), (format, 2), "{name}");
        assert_eq!(trace.value_bytes.map(|sizes| sizes[0]), size, "{name}");
        if format != Format::Metadump {
            assert_eq!(trace.requests, [0, 1, 0], "{name}");
        }
    }
    for (name, bytes) in
        [("h.lis", &b"7 x\n"[..]), ("i.jsonl", b"{}\n"), ("j.trace", b""), ("k.trace", &big[..11])]
    {
        assert!(read(&folder.file(name, bytes)).is_err(), "{name}");
    }
    folder.file("m-pop.json", br#"{"popularityBuckets":[1,9],"popularityWeights":[5,5]}"#);
    folder.file("m-sizes.json", br#"{"valSizeRange":[31],"valSizeRangeProbability":[1]}"#);
    let config = br#"{"test_config":{"getRatio":0.9,"loneGetRatio":0.1,"popDistFile":"pop.json",
                      "valSizeDistFile":"sizes.json"}}"#;
    let trace = read(&folder.file("m-config.json", config)).expect("it is whole");
    // A hundred of a thousand requests are for keys that nobody else asks for.
    assert!((100..250).contains(&trace.keys), "{} keys", trace.keys);
    assert_eq!((trace.name.as_str(), trace.requests.len()), ("m", 1000));
}

#[test]
fn a_replay_counts_misses_and_items_and_is_not_repeated() {
    let folder = Folder::new("replay");
    let mut lines = String::new();
    for request in 0..400u32 {
        writeln!(lines, "{request} {} {}", request * request % 101, request % 300).expect("room");
    }
    let trace = folder.file("squares.txt", lines.as_bytes());
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
    let settings = Settings { listen, threads: 2, ..Settings::default() };
    let server = Server::<Model>::open(settings, Configuration::default()).expect("starts");
    let stopper = server.stopper().expect("a descriptor");
    let name = format!("ours=127.0.0.1:{}", server.tcp_port().expect("it listens"));
    let thread = std::thread::spawn(|| server.run());
    let results = folder.0.join("results");
    let results = results.to_str().expect("a name of letters");
    let trace = trace.to_str().expect("a name of letters");
    let line = ["--sizes", "trace", "--copies", "3", "--batch", "8", "--json", trace];
    let line = [&line[..], &["--results", results, "--server", &name]].concat();
    run(&arguments(&line)).expect("a replay");
    stopper.stop();
    assert!(matches!(thread.join(), Ok(Ok(()))));
    let text = std::fs::read_to_string(results).expect("results");
    let result: ServerResult = serde_json::from_str(&text).expect("one line");
    // There are 51 squares modulo 101. Nothing is evicted: a key misses once in each copy.
    assert_eq!((result.load.requests, result.load.keys), (1200, 153));
    assert_eq!((result.misses, result.items, result.evictions), (153, 153, 0));
    assert_eq!(result.payload_bytes, result.load.total_payload_bytes);
    // The server is gone, and the replay is on file.
    run(&arguments(&line)).expect("nothing to replay");
    assert_eq!(std::fs::read_to_string(results).expect("results"), text);
}
