//! What `packaging` promises: images that cannot change unnoticed, and a unit that gives the server
//! no more rights than it needs.

use std::path::Path;
use std::process::Command;

use amalgam_tidy::{assert_none, root, sources};

/// The image that the Dockerfile builds.
const OWN_IMAGE: &str = "amalgam";

/// In tenths of systemd's points of exposure; "OK" ends at 50.
const EXPOSURE_MAX: &str = "20";

/// The image that a line of a Dockerfile or a compose file names.
fn image(line: &str) -> Option<&str> {
    let line = line.trim();
    let rest = line.strip_prefix("FROM ").or_else(|| line.strip_prefix("image: "))?;
    rest.split_whitespace().next()
}

fn is_pinned(image: &str) -> bool {
    image.split_once("@sha256:").is_some_and(|(_, digest)| {
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[test]
fn other_peoples_images_are_pinned_by_digest() {
    let mut files = sources(&["yaml"]);
    files.retain(|file| file.path.starts_with("packaging/"));
    let mut images: Vec<(String, String)> = Vec::new();
    let dockerfile = std::fs::read_to_string(root().join("packaging/Dockerfile"));
    let texts = files.iter().map(|file| (file.path.as_str(), file.text.as_str()));
    let dockerfile = dockerfile.expect("the Dockerfile");
    for (path, text) in texts.chain([("packaging/Dockerfile", dockerfile.as_str())]) {
        let named = text.lines().filter_map(image);
        images.extend(named.map(|image| (path.to_owned(), image.to_owned())));
    }
    images.retain(|(_, image)| image.split(':').next() != Some(OWN_IMAGE));
    assert!(images.len() >= 4, "the images of Dockerfile and compose file: {images:?}");
    images.retain(|(_, image)| !is_pinned(image));
    let offences: Vec<_> = images.iter().map(|(path, image)| format!("{path}: {image}")).collect();
    assert_none("images are pinned by digest", &offences);
}

/// Runs systemd-analyze on the unit at `unit`; None where the tool is not installed.
fn rate_unit(unit: &Path) -> Option<Result<(), String>> {
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX])
        .arg(unit)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some(if output.status.success() { Ok(()) } else { Err(text.into_owned()) })
}

#[test]
fn the_unit_is_confined_as_systemd_rates_it() {
    let unit = root().join("packaging/systemd/amalgam.service");
    let Some(rating) = rate_unit(&unit) else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    rating.unwrap_or_else(|text| panic!("exposure above {EXPOSURE_MAX} tenths:\n{text}"));
    // Without one of its lines the unit would not pass: the tool does rate it.
    let loose = std::env::temp_dir().join(format!("amalgam-loose-{}.service", std::process::id()));
    let text = std::fs::read_to_string(&unit).expect("the unit");
    std::fs::write(&loose, text.replace("CapabilityBoundingSet=\n", "")).expect("a file");
    let rating = rate_unit(&loose).expect("the same tool");
    std::fs::remove_file(&loose).expect("the file");
    assert!(rating.is_err(), "a unit without CapabilityBoundingSet= is above the limit");
}
