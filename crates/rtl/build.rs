//! Turns the hardware into C++ and compiles it, once for each configuration that is tested. Does
//! nothing without the feature `verilated`.

#[cfg(feature = "verilated")]
#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "src/configuration.rs"]
mod configuration;
#[cfg(feature = "verilated")]
#[cfg_attr(
    not(all(feature = "wide", feature = "full")),
    expect(dead_code, reason = "only both features build all of them")
)]
#[path = "src/configurations.rs"]
mod configurations;

#[cfg(not(feature = "verilated"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}

#[cfg(feature = "verilated")]
fn main() {
    // For lints, which link nothing.
    println!("cargo::rerun-if-env-changed=AMALGAM_LINT_ONLY");
    if std::env::var_os("AMALGAM_LINT_ONLY").is_none() {
        verilated::build();
    }
}

#[cfg(feature = "verilated")]
mod verilated {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use crate::configuration::Configuration;
    use crate::configurations::{ALL, FRONTS, LARGE};

    const RTL: &str = "../../rtl";

    pub fn build() {
        println!("cargo::rerun-if-changed={RTL}");
        for file in
            ["configuration.rs", "configurations.rs", "shim.cpp", "shim_table.h", "shim_frames.h"]
        {
            println!("cargo::rerun-if-changed=src/{file}");
        }
        let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
        println!("cargo::rustc-link-search=native={}", output.display());
        let mut runtime = None;
        let tables = ALL.iter().chain(LARGE).map(|table| (table, "ht_sim", "shim_table.h"));
        let fronts = FRONTS.iter().map(|front| (front, "frames_sim", "shim_frames.h"));
        for (configuration, top, ports) in tables.chain(fronts) {
            let folder = output.join(configuration.name);
            verilate(configuration, top, &folder);
            compile(configuration, ports, &folder, runtime.get_or_insert_with(runtime_folder));
        }
        compile_runtime(runtime.as_deref().expect("there are configurations"));
    }

    fn verilate(configuration: &Configuration, top: &str, folder: &Path) {
        let mut command = Command::new("verilator");
        command.args(["--cc", "-O3", "--x-assign", "fast", "--x-initial", "unique"]);
        if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
            command.arg("--assert");
        }
        command.args(["-Wall", "-Wno-fatal", "--top-module", top]);
        command.arg("--prefix").arg(format!("V{}", configuration.name));
        command.arg("--Mdir").arg(folder);
        for (name, value) in configuration.parameters() {
            command.arg(format!("-G{name}={value}"));
        }
        command.arg(format!("{RTL}/lint.vlt"));
        command.args(sources());
        let status = command.status().unwrap_or_else(|error| {
            panic!("the feature `verilated` needs Verilator (Debian: verilator): {error}")
        });
        assert!(status.success(), "Verilator refused {}", configuration.name);
    }

    /// The package first, then whatever there is.
    fn sources() -> Vec<String> {
        let mut sources = Vec::new();
        for folder in ["src", "sim"] {
            let entries = std::fs::read_dir(Path::new(RTL).join(folder)).expect("the sources");
            for entry in entries {
                let path = entry.expect("the sources").path();
                if path.extension().is_some_and(|extension| extension == "sv") {
                    sources.push(path.to_str().expect("plain names").to_owned());
                }
            }
        }
        sources.sort_by_key(|path| (!path.ends_with("_pkg.sv"), path.clone()));
        sources
    }

    fn runtime_folder() -> PathBuf {
        let output = Command::new("verilator").args(["--getenv", "VERILATOR_ROOT"]).output();
        let output = output.expect("it ran a moment ago").stdout;
        PathBuf::from(String::from_utf8(output).expect("a path").trim()).join("include")
    }

    fn cpp(runtime: &Path, effort: u32) -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(effort).debug(false).warnings(false);
        build.flag_if_supported("-march=native");
        build.include(runtime).include(runtime.join("vltstd"));
        build.define("VM_TRACE", "0").define("VM_COVERAGE", "0").define("VM_SC", "0");
        build
    }

    /// Compiles what Verilator wrote, unless it is what was compiled last time.
    fn compile(configuration: &Configuration, ports: &str, folder: &Path, runtime: &Path) {
        let name = configuration.name;
        let library = format!("amalgam_rtl_{name}");
        let entries = std::fs::read_dir(folder).expect("Verilator wrote it");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("it is there").path()).collect();
        files.retain(|path| path.extension().is_some_and(|e| e == "cpp" || e == "h"));
        files.extend(["src/shim.cpp".into(), Path::new("src").join(ports)]);
        files.sort();
        let mut hasher = DefaultHasher::new();
        for file in &files {
            std::fs::read(file).expect("it is there").hash(&mut hasher);
        }
        let (stamp, hash) = (folder.with_extension("stamp"), hasher.finish().to_string());
        if std::fs::read_to_string(&stamp).is_ok_and(|old| old == hash) {
            println!("cargo::rustc-link-lib=static={library}");
            return;
        }
        // Several tables are compiled for minutes and run for seconds.
        let mut build = cpp(runtime, if configuration.tables > 1 { 1 } else { 2 });
        build.include(folder).include("src");
        build.define("MODEL", format!("V{name}").as_str());
        build.define("HEADER", format!("\"V{name}.h\"").as_str());
        build.define("PORTS", format!("\"{ports}\"").as_str());
        build.define("NAME(x)", format!("amalgam_{name}_##x").as_str());
        build.files(files.iter().filter(|file| file.extension().is_some_and(|e| e == "cpp")));
        build.compile(&library);
        std::fs::write(stamp, hash).expect("it can be written");
    }

    fn compile_runtime(runtime: &Path) {
        let mut build = cpp(runtime, 2);
        build.file(runtime.join("verilated.cpp"));
        // Split off from the former in later versions.
        let threads = runtime.join("verilated_threads.cpp");
        if threads.exists() {
            build.file(threads);
        }
        build.compile("amalgam_rtl_verilated");
    }
}
