//! The configurations come from one file, `rtl/configurations.toml`. `AMALGAM_WRITE=1` writes what
//! is made of it anew; without, this test says what is out of date.

mod made;

use std::fmt::Write;

use made::{between_marks, is_current, root};
use toml::{Table, Value};

/// Fields of `Configuration`, the hardware's parameters, and what is not given in every one.
const FIELDS: [(&str, &str, Option<i64>); 16] = [
    ("slots", "Slots", None),
    ("slots_per_beat", "SlotsPerBeat", None),
    ("stripe_bytes", "StripeBytes", None),
    ("lines", "Lines", None),
    ("key_bytes", "KeyBytes", None),
    ("header_bytes", "HeaderBytes", None),
    ("is_terms_last", "TermsLast", None),
    ("bucket_bits", "BucketBits", None),
    ("is_ring", "HashRing", None),
    ("writers", "Writers", None),
    ("counter_bits", "CounterBits", Some(0)),
    ("return_beats", "ReturnBeats", None),
    ("log_bits", "LogBits", None),
    ("position_bits", "PositionBits", Some(48)),
    ("bus_bytes", "BusBytes", Some(8)),
    ("tables", "Tables", Some(1)),
];

fn text<'a>(entry: &'a Table, field: &str) -> &'a str {
    entry[field].as_str().unwrap_or_else(|| panic!("{field} is text"))
}

/// The parameters that an entry states itself.
fn own(entry: &Table) -> Vec<(&'static str, i64)> {
    let is_parameter = |name: &&String| name.starts_with(|first: char| first.is_uppercase());
    let known = |name: &String| FIELDS.iter().any(|(_, parameter, _)| parameter == name);
    let unknown: Vec<_> = entry.keys().filter(is_parameter).filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "no parameters: {unknown:?}");
    let value = |name| entry.get(name)?.as_integer().map(|value| (name, value));
    FIELDS.iter().filter_map(|(_, name, _)| value(*name)).collect()
}

fn parameter(entries: &Table, name: &str, wanted: &str) -> Option<i64> {
    let entry = entries[name].as_table().expect("a configuration");
    let stated = own(entry).into_iter().find(|(parameter, _)| *parameter == wanted);
    let like = entry.get("like").and_then(Value::as_str);
    stated.map(|(_, value)| value).or_else(|| parameter(entries, like?, wanted))
}

/// The name of the constant: `10g` becomes `GIGABITS_10`.
fn constant(name: &str) -> String {
    match name.strip_suffix('g') {
        Some(number) if name.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("GIGABITS_{number}")
        }
        _ => name.to_uppercase(),
    }
}

fn sentence(about: &str) -> String {
    let (first, rest) = about.split_at(1);
    first.to_uppercase() + rest
}

fn software(entries: &Table, order: &[&String]) -> String {
    let mut made =
        "//! The configurations that are simulated. Made of rtl/configurations.toml.\n\n\
                    use crate::configuration::Configuration;\n"
            .to_owned();
    let (mut streams, mut large, mut fronts) = (Vec::new(), String::new(), String::new());
    for &name in order {
        let entry = entries[name].as_table().expect("a configuration");
        let Some(simulated) = entry.get("simulated").and_then(Value::as_table) else { continue };
        let constant = constant(name);
        writeln!(
            made,
            "\n/// {}.\npub const {constant}: Configuration = Configuration {{\n    \
             name: \"{name}\",",
            sentence(text(entry, "about"))
        )
        .expect("text");
        for (field, wanted, default) in FIELDS {
            let value = simulated.get(wanted).and_then(Value::as_integer);
            let value = value.or_else(|| parameter(entries, name, wanted)).or(default);
            let value = value.unwrap_or_else(|| panic!("{name} has no {wanted}"));
            let is_bit = field.starts_with("is_");
            let value = if is_bit { (value == 1).to_string() } else { value.to_string() };
            writeln!(made, "    {field}: {value},").expect("text");
        }
        made += "};\n";
        match text(entry, "top") {
            "ht_udp" => fronts += &format!("    {constant},\n"),
            _ if entry.contains_key("is_large") => {
                large += &format!("    #[cfg(feature = \"full\")]\n    {constant},\n");
            }
            "ht_wide" => fronts += &format!("    #[cfg(feature = \"wide\")]\n    {constant},\n"),
            _ => streams.push(constant),
        }
    }
    write!(
        made,
        "\n/// The tables that are simulated without an Ethernet port, through their streams.\n\
         pub const ALL: &[Configuration] = &[{}];\n\
         \n/// Such tables that are too large for tests of all.\n\
         pub const LARGE: &[Configuration] = &[\n{large}];\n\
         \n/// The tables that are simulated behind an Ethernet port.\n\
         pub const FRONTS: &[Configuration] = &[\n{fronts}];\n",
        streams.join(", ")
    )
    .expect("text");
    made
}

fn listed(parameters: Vec<(&str, i64)>) -> String {
    let each = parameters.into_iter().map(|(name, value)| format!("`{name}={value}`"));
    each.collect::<Vec<_>>().join(" ")
}

fn page(entries: &Table, order: &[&String]) -> String {
    let mut made = "| configuration | what it is | module | parameters | in simulation |\n\
                    | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for &name in order {
        let entry = entries[name].as_table().expect("a configuration");
        let mut parameters = listed(own(entry));
        if let Some(like) = entry.get("like").and_then(Value::as_str) {
            let but = if parameters.is_empty() { "" } else { ", but " };
            parameters = format!("as `{like}`{but}{parameters}");
        }
        let simulated = match entry.get("simulated").and_then(Value::as_table) {
            None => "not simulated".to_owned(),
            Some(table) if table.is_empty() => "the same".to_owned(),
            Some(table) => listed(own(table)),
        };
        let (about, top) = (text(entry, "about"), text(entry, "top"));
        writeln!(made, "| `{name}` | {about} | `{top}` | {parameters} | {simulated} |")
            .expect("text");
    }
    made
}

#[test]
fn what_is_made_of_the_configurations_file_is_current() {
    let text = std::fs::read_to_string(root().join("rtl/configurations.toml")).expect("the file");
    let entries: Table = toml::from_str(&text).expect("configurations");
    let mut order: Vec<_> = entries.keys().collect();
    order.sort_by_key(|name| text.find(&format!("\n[{name}]")));
    assert!(is_current("crates/rtl/src/configurations.rs", |_| software(&entries, &order)));
    let made = page(&entries, &order);
    assert!(is_current("docs/hardware.md", |page| between_marks(page, "configurations", &made)));
}
