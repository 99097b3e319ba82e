//! The registers come from one file, `rtl/registers.toml`. `AMALGAM_WRITE=1` writes what is made
//! of it anew; without, this test says what is out of date.

mod made;

use std::fmt::Write;

use made::{between_marks, is_current, root};
use serde::Deserialize;

#[derive(Deserialize)]
struct Map {
    register: Vec<Register>,
}

#[derive(Deserialize)]
struct Register {
    name: String,
    kind: Kind,
    #[serde(default)]
    value: u32,
    #[serde(default)]
    reset: u32,
    about: String,
}

#[derive(Deserialize, PartialEq, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Constant,
    Input,
    Stored,
    Early,
    Counter,
}

impl Register {
    fn port(&self) -> Option<String> {
        let name = &self.name;
        Some(match self.kind {
            Kind::Constant => return None,
            Kind::Input => format!("  input  logic [31:0] {name}_i,\n"),
            Kind::Stored | Kind::Early => format!("  output logic [31:0] {name}_o,\n"),
            Kind::Counter => format!("  input  logic        {name}_i,\n"),
        })
    }

    /// What a read shows.
    fn shown(&self) -> String {
        match self.kind {
            Kind::Constant => format!("32'h{:08x}", self.value),
            Kind::Input => format!("{}_i", self.name),
            Kind::Stored | Kind::Early => format!("{}_o", self.name),
            Kind::Counter => format!("{}_q[31:0]", self.name),
        }
    }

    /// What happens to it at a rising clock.
    fn next(&self, place: usize) -> Option<String> {
        let name = &self.name;
        let written = format!("is_write && write_place == PlaceWidth'({place})");
        Some(match self.kind {
            Kind::Constant | Kind::Input => return None,
            Kind::Stored => format!("      if ({written}) {name}_o <= wdata_i;\n"),
            Kind::Early => {
                format!("      if ({written} && is_early_i) {name}_o <= wdata_i;\n")
            }
            Kind::Counter => format!("      if ({name}_i) {name}_q <= {name}_q + 1'b1;\n"),
        })
    }
}

/// The registers with their places; a counter has two.
fn placed(registers: &[Register]) -> impl Iterator<Item = (usize, &Register)> {
    registers.iter().scan(0, |next, register| {
        let place = *next;
        *next += if register.kind == Kind::Counter { 2 } else { 1 };
        Some((place, register))
    })
}

fn hardware(registers: &[Register]) -> String {
    let last = placed(registers).last().expect("there are registers").0 + 1;
    let places = usize::BITS - last.leading_zeros();
    let ports: String = registers.iter().filter_map(Register::port).collect();
    let counters = registers.iter().filter(|register| register.kind == Kind::Counter);
    let declared: String =
        counters.clone().map(|c| format!("  logic [63:0] {}_q;\n", c.name)).collect();
    let mut reset: String = counters.map(|c| format!("      {}_q <= '0;\n", c.name)).collect();
    for register in registers {
        if matches!(register.kind, Kind::Stored | Kind::Early) {
            writeln!(reset, "      {}_o <= 32'd{};", register.name, register.reset).expect("text");
        }
    }
    let (mut shown, mut high, mut next) = (String::new(), String::new(), String::new());
    for (place, register) in placed(registers) {
        let value = register.shown();
        writeln!(shown, "      {places}'d{place}: shown = {value};").expect("text");
        if register.kind == Kind::Counter {
            writeln!(shown, "      {places}'d{}: shown = high_q;", place + 1).expect("text");
            let value = format!("{}_q[63:32]", register.name);
            writeln!(high, "      {places}'d{place}: high = {value};").expect("text");
        }
        next += &register.next(place).unwrap_or_default();
    }
    include_str!("registers.sv.template")
        .replace("@PLACE_WIDTH@", &places.to_string())
        .replace("@PORTS@", &ports)
        .replace("@DECLARED@", &declared)
        .replace("@SHOWN@", &shown)
        .replace("@HIGH@", &high)
        .replace("@RESET@", &reset)
        .replace("@NEXT@", &next)
}

fn software(registers: &[Register]) -> String {
    let mut text = "//! Addresses of the registers. Made of rtl/registers.toml.\n".to_owned();
    for (place, Register { name, about, .. }) in placed(registers) {
        let name = name.to_uppercase();
        let (first, rest) = about.split_at(1);
        let about = first.to_uppercase() + rest;
        write!(text, "\n/// {about}.\npub const {name}: u32 = {:#04x};\n", place * 4)
            .expect("text");
    }
    text
}

fn page(registers: &[Register]) -> String {
    let mut text =
        "| address | register | kind | what it is |\n| --- | --- | --- | --- |\n".to_owned();
    for (place, Register { name, kind, about, .. }) in placed(registers) {
        let kind = format!("{kind:?}").to_lowercase();
        writeln!(text, "| {:#04x} | `{name}` | {kind} | {about} |", place * 4).expect("text");
    }
    text
}

#[test]
fn version_is_answered_as_the_register_shows_it() {
    let text = std::fs::read_to_string(root().join("rtl/registers.toml")).expect("the file");
    let Map { register: registers } = toml::from_str(&text).expect("a map of registers");
    let version = registers.iter().find(|register| register.name == "version").expect("it is");
    let [_, major, minor, patch] = version.value.to_be_bytes();
    let formatter = std::fs::read_to_string(root().join("rtl/src/response_formatter.sv"));
    let text = format!("VersionText = \"{major}.{minor}.{patch}\"");
    assert!(formatter.expect("the source").contains(&text));
}

#[test]
fn what_is_made_of_the_registers_file_is_current() {
    let text = std::fs::read_to_string(root().join("rtl/registers.toml")).expect("the file");
    let Map { register: registers } = toml::from_str(&text).expect("a map of registers");
    assert!(is_current("rtl/src/ht_registers.sv", |_| hardware(&registers)));
    assert!(is_current("crates/rtl/src/register_map.rs", |_| software(&registers)));
    let made = page(&registers);
    assert!(is_current("docs/hardware.md", |page| between_marks(page, "registers", &made)));
}
