//! Traces in files: the formats that public collections of traces use, compressed or not.
//!
//! Invariants of this module:
//! 1. What is kept is bounded by the number of requests that the caller asked for, however large
//!    the file is once decompressed; the length of a line is bounded, too.
//! 2. Keys are numbered in the order of their first request, so that a trace needs 4 bytes a
//!    request whatever its keys are.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::builder::{Builder, each_line, key_number};
use super::generator::{self, Generator};

/// The largest window or dictionary that a compressed file may ask for, in bytes.
const LARGEST_WINDOW_BYTES: usize = 128 << 20;

/// Bytes that are read of a compressed file at once.
const READ_BYTES: usize = 64 << 10;

/// Bytes of a record of libCacheSim's format oracleGeneral: u32 time, u64 key, u32 size, i64 time
/// of the next access.
const ORACLE_RECORD_BYTES: usize = 24;

/// How a file holds requests.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// 32-bit big-endian integers, one key a request (Caffeine's simulator, cache2k).
    Int32Be,
    /// The same, little-endian.
    Int32Le,
    /// A line a request: key; or key and size; or time, key and size.
    Text,
    /// The ARC paper's block traces: a line is first block, count of blocks and two more numbers.
    Arc,
    /// libCacheSim's binary records.
    OracleGeneral,
    /// Mooncake's JSON lines: each of `hash_ids` is a request.
    Mooncake,
    /// What `lru_crawler metadump all` answers: items with sizes. Requests are generated.
    Metadump,
    /// CacheLib's `config.json` next to its popularity and sizes. Requests are generated.
    Cachelib,
}

/// A trace, read whole.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file's name without what all names of the collection share.
    pub name: String,
    /// How the file held it.
    pub format: Format,
    /// The key of each request: less than `keys`.
    pub requests: Vec<u32>,
    /// The number of distinct keys.
    pub keys: u32,
    /// Length of each key's value in bytes, at its first request; None where the trace has none.
    pub value_bytes: Option<Vec<u32>>,
}

/// Which part of a trace is read, and how requests are generated where a file has none.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The format; None finds it out.
    pub format: Option<Format>,
    /// The most requests that are read, or those that are generated.
    pub requests: Option<u64>,
    /// How requests are generated.
    pub generator: Generator,
}

/// The most requests that are read where the user does not say.
const DEFAULT_REQUESTS: u64 = 20_000_000;

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is in none of the formats, or damaged, or has no request.
    pub fn read(path: &Path, reading: &Reading) -> anyhow::Result<Self> {
        let trace = Self::read_whole(path, reading);
        trace.with_context(|| format!("trace {}", path.display()))
    }

    fn read_whole(path: &Path, reading: &Reading) -> anyhow::Result<Self> {
        let mut input = decompressed(path)?;
        let format = match reading.format {
            Some(format) => format,
            None => detect(path, input.fill_buf()?)?,
        };
        let most = reading.requests.unwrap_or(DEFAULT_REQUESTS);
        let mut builder = Builder::new(most);
        match format {
            Format::Int32Be => records(&mut input, &mut builder, |record: [u8; 4]| {
                (u64::from(u32::from_be_bytes(record)), None)
            })?,
            Format::Int32Le => records(&mut input, &mut builder, |record: [u8; 4]| {
                (u64::from(u32::from_le_bytes(record)), None)
            })?,
            Format::OracleGeneral => {
                records(&mut input, &mut builder, |record: [u8; ORACLE_RECORD_BYTES]| {
                    let key = u64::from_le_bytes(record[4..12].try_into().expect("8 bytes"));
                    let size = u32::from_le_bytes(record[12..16].try_into().expect("4 bytes"));
                    (key, Some(size))
                })?;
            }
            Format::Text => lines(&mut input, &mut builder, text_line)?,
            Format::Arc => lines(&mut input, &mut builder, arc_line)?,
            Format::Mooncake => lines(&mut input, &mut builder, mooncake_line)?,
            Format::Metadump => {
                let items = generator::read_metadump(&mut input)?;
                reading.generator.requests_for_items(&items, reading.requests, &mut builder)?;
            }
            Format::Cachelib => {
                let model = generator::CachelibModel::read(path)?;
                reading.generator.requests_for_model(&model, reading.requests, &mut builder)?;
            }
        }
        ensure!(!builder.requests.is_empty(), "it has no request");
        Ok(Self {
            name: short_name(path),
            format,
            keys: builder.value_bytes.len() as u32,
            requests: builder.requests,
            value_bytes: builder.has_sizes.then_some(builder.value_bytes),
        })
    }
}

/// A file's name without its extensions.
fn short_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let known = [
        ".xz",
        ".zst",
        ".trace",
        ".lis",
        ".bin",
        ".oracleGeneral",
        ".jsonl",
        ".json",
        ".txt",
        ".csv",
        "-config",
    ];
    let mut name = name.as_str();
    while let Some(shorter) = known.iter().find_map(|end| name.strip_suffix(end)) {
        name = shorter;
    }
    name.to_owned()
}

/// Opens a file, and decompresses it if its first bytes are those of xz or zstd.
fn decompressed(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    let mut input = BufReader::new(File::open(path).context("opening it")?);
    let magic = input.fill_buf()?;
    if magic.starts_with(b"\xfd7zXZ\0") {
        let decoder = xz4rust::XzDecoder::in_heap_with_alloc_dict_size(0, LARGEST_WINDOW_BYTES);
        let reader = xz4rust::XzReader::new_with_buffer_size_and_decoder(
            input,
            std::num::NonZeroUsize::MIN.saturating_add(READ_BYTES),
            decoder,
        );
        return Ok(Box::new(BufReader::new(reader)));
    }
    if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(
            input,
            LARGEST_WINDOW_BYTES as u64,
        );
        let decoder = decoder.map_err(|error| anyhow::anyhow!("zstd: {error}"))?;
        return Ok(Box::new(BufReader::new(decoder)));
    }
    Ok(Box::new(input))
}

/// The format of a file by its name, or else by its first bytes.
fn detect(path: &Path, begin: &[u8]) -> anyhow::Result<Format> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_text = begin.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    Ok(if name.contains("oracleGeneral") {
        Format::OracleGeneral
    } else if name.contains(".lis") {
        Format::Arc
    } else if begin.starts_with(b"key=") {
        Format::Metadump
    } else if is_text && name.ends_with(".json") {
        Format::Cachelib
    } else if is_text && begin.starts_with(b"{") {
        Format::Mooncake
    } else if is_text {
        Format::Text
    } else {
        // Keys are small numbers mostly, whose high bytes are zero.
        let zeros = |offset: usize| begin[offset..].iter().step_by(4).filter(|b| **b == 0).count();
        ensure!(begin.len() >= 4, "it is too short to tell its format: name one with --format");
        match zeros(0).cmp(&zeros(3)) {
            std::cmp::Ordering::Greater => Format::Int32Be,
            std::cmp::Ordering::Less => Format::Int32Le,
            std::cmp::Ordering::Equal => bail!("its format is not clear: name it with --format"),
        }
    })
}

fn records<const BYTES: usize>(
    input: &mut dyn BufRead,
    builder: &mut Builder,
    decode: impl Fn([u8; BYTES]) -> (u64, Option<u32>),
) -> anyhow::Result<()> {
    let mut record = [0; BYTES];
    while !builder.is_full() {
        if input.fill_buf()?.is_empty() {
            return Ok(());
        }
        let number = builder.requests.len();
        input.read_exact(&mut record).with_context(|| format!("record {number} is cut off"))?;
        let (key, size) = decode(record);
        builder.add(key, size);
    }
    Ok(())
}

fn lines(
    input: &mut dyn BufRead,
    builder: &mut Builder,
    decode: impl Fn(&str, &mut Builder) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut number = 0;
    each_line(input, |line| {
        number += 1;
        decode(line, builder).with_context(|| format!("line {number}"))?;
        Ok(!builder.is_full())
    })
}

fn text_line(line: &str, builder: &mut Builder) -> anyhow::Result<()> {
    let is_separator = |letter: char| letter == ',' || letter.is_whitespace();
    let fields: Vec<&str> = line.split(is_separator).filter(|field| !field.is_empty()).collect();
    let size = |text: &str| {
        text.parse::<u32>().with_context(|| format!("'{text}' is not a size in bytes"))
    };
    match fields.as_slice() {
        [key] => builder.add(key_number(key), None),
        [key, bytes] | [_, key, bytes, ..] => builder.add(key_number(key), Some(size(bytes)?)),
        [] => bail!("it has neither key nor size"),
    }
    Ok(())
}

fn arc_line(line: &str, builder: &mut Builder) -> anyhow::Result<()> {
    let mut fields = line.split_whitespace();
    let mut number = || -> anyhow::Result<u64> {
        let field = fields.next().context("it must start with first block and count of blocks")?;
        field.parse().with_context(|| format!("'{field}' is not a number"))
    };
    let (first, count) = (number()?, number()?);
    for block in 0..count {
        if builder.is_full() {
            break;
        }
        builder.add(first.wrapping_add(block), None);
    }
    Ok(())
}

fn mooncake_line(line: &str, builder: &mut Builder) -> anyhow::Result<()> {
    #[derive(serde::Deserialize)]
    struct Request {
        hash_ids: Vec<u64>,
    }
    let request: Request = serde_json::from_str(line).context("no JSON object with hash_ids")?;
    for id in request.hash_ids {
        builder.add(id, None);
    }
    Ok(())
}
