//! Builds the C++ peers that are installed; a peer without its header is left out.

use std::path::Path;

/// Peers by name, with the header each needs (Debian: libcuckoo-dev, libtbb-dev).
const PEERS: [(&str, &str); 2] =
    [("libcuckoo", "libcuckoo/cuckoohash_map.hh"), ("tbb", "tbb/concurrent_hash_map.h")];

fn main() {
    for (name, header) in PEERS {
        println!("cargo::rustc-check-cfg=cfg(has_{name})");
        let source = format!("src/cpp/{name}.cc");
        println!("cargo::rerun-if-changed={source}");
        let is_installed = ["/usr/include", "/usr/local/include"]
            .iter()
            .any(|folder| Path::new(folder).join(header).exists());
        if !is_installed {
            println!("cargo::warning={header} is not installed: built without {name}");
            continue;
        }
        println!("cargo::rustc-cfg=has_{name}");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(3)
            .flag_if_supported("-march=native")
            .warnings(false)
            .file(source)
            .compile(&format!("amalgam_peer_{name}"));
        if name == "tbb" {
            println!("cargo::rustc-link-lib=tbb");
        }
    }
    println!("cargo::rerun-if-changed=src/cpp/common.hh");
}
