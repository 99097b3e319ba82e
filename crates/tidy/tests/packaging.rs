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
    // A template of the chart names what its values say.
    rest.split_whitespace().next().filter(|name| *name != "{{")
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

/// The value of a key at the beginning of a line of YAML.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).map(|at| at.trim_matches('"'))
}

#[test]
fn the_chart_installs_this_version_and_checks_all_its_values() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let chart = read("packaging/helm/amalgam/Chart.yaml");
    for key in ["version", "appVersion"] {
        assert_eq!(value(&chart, key), Some(env!("CARGO_PKG_VERSION")), "{key}");
    }
    let values = read("packaging/helm/amalgam/values.yaml");
    let schema = read("packaging/helm/amalgam/values.schema.json");
    let is_key = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let keys: Vec<&str> =
        values.lines().filter(is_key).filter_map(|line| line.split(':').next()).collect();
    assert!(keys.len() > 20, "{keys:?}");
    let missing: Vec<String> = keys
        .into_iter()
        .filter(|key| !schema.contains(&format!("\n    \"{key}\": {{")))
        .map(str::to_owned)
        .collect();
    assert_none("values that the schema has", &missing);
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

#[test]
fn the_package_says_what_the_release_script_fills_in() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let control = read("packaging/debian/control");
    let script = read("scripts/release");
    let is_field =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_uppercase());
    let fields: Vec<&str> = control.split('@').filter(is_field).collect();
    assert_eq!(fields, ["VERSION", "ARCHITECTURE", "SIZE", "LIBC"]);
    for field in fields {
        assert!(script.contains(&format!("s/@{field}@/")), "{field} is filled in");
    }
    // Items that systemd's folder for the unit does not hold would be lost at a restart.
    let unit = read("packaging/systemd/amalgam.service");
    let folder = unit.split_once("\nStateDirectory=").expect("a folder").1.lines().next();
    let file = format!("--memory-file /var/lib/{}/", folder.expect("its name"));
    assert!(unit.contains(&file) && unit.contains("\nKillSignal=SIGUSR1\n"), "{unit}");
}

/// Runs `script` in a shell, in `folder`.
fn shell(folder: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-ec").arg(script).current_dir(folder).output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_image_of_a_release_is_whole() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: python3 is not installed");
        return;
    }
    let folder = std::env::temp_dir().join(format!("amalgam-image-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("binary"), "a program").expect("a file");
    let script = root().join("scripts/oci-image");
    let program = script.display();
    let make = format!(
        "SOURCE_DATE_EPOCH=1 {program} 9.9 one.tar amd64=binary arm64=binary
         SOURCE_DATE_EPOCH=1 {program} 9.9 two.tar amd64=binary arm64=binary
         cmp one.tar two.tar && tar -xf one.tar && cd blobs/sha256 && sha256sum *"
    );
    let sums = shell(&folder, &make);
    let blobs: Vec<(&str, &str)> = sums.lines().filter_map(|line| line.split_once("  ")).collect();
    // Two processors with a manifest and a configuration each, their one layer, and the index.
    assert_eq!(blobs.len(), 6, "{sums}");
    assert!(blobs.iter().all(|(sum, name)| sum == name), "{sums}");
    let digests = shell(&folder, "cat index.json blobs/sha256/* | grep -ao 'sha256:[0-9a-f]*'");
    let layer = shell(
        &folder,
        "for blob in blobs/sha256/*; do gzip -dc <$blob 2>/dev/null | tar -tf - 2>/dev/null || :
         done; for blob in blobs/sha256/*; do gzip -dc <$blob 2>/dev/null | sha256sum; done",
    );
    std::fs::remove_dir_all(&folder).expect("the folder");
    for digest in digests.lines().filter_map(|digest| digest.strip_prefix("sha256:")) {
        let is_known = blobs.iter().any(|(sum, _)| *sum == digest) || layer.contains(digest);
        assert!(is_known, "{digest} is in the archive");
    }
    assert!(layer.lines().any(|line| line == "usr/bin/amalgam"), "{layer}");
}
