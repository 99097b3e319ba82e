//! Checks pages and pictures in headless Chromium: they load, the console stays silent, and no text
//! is cut off or hidden, on light and dark pages, in wide and narrow windows.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The script that checks a page from inside.
const CHECK: &str = include_str!("check.js");

/// The names of Chromium's program, which are tried in order after `AMALGAM_CHROMIUM`.
const NAMES: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"];

/// The window and the color scheme in which a page is checked.
#[derive(Clone, Copy, Debug)]
struct View {
    is_dark: bool,
    width: u32,
}

const VIEWS: [View; 3] = [
    View { is_dark: false, width: 1200 },
    View { is_dark: true, width: 1200 },
    View { is_dark: false, width: 600 },
];

/// The browser, or a line that says why the test is skipped.
fn chromium() -> Option<PathBuf> {
    let own = std::env::var_os("AMALGAM_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let on_path =
        |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    let found = own.or_else(|| NAMES.iter().find_map(on_path));
    if found.is_none() {
        // Written directly, as the test harness shows only what failing tests print.
        let _ = writeln!(
            std::io::stderr(),
            "pages are not looked at: there is no Chromium (on Debian: apt-get install chromium)"
        );
    }
    found
}

/// The faults of a page, and the number of texts in its pictures.
fn faults(chromium: &Path, folder: &Path, page: &str, view: View) -> (Vec<String>, usize) {
    let file = folder.join("checked.html");
    assert!(page.contains("<head>"), "a page has a head");
    let checked = page.replacen("<head>", &format!("<head><script>{CHECK}</script>"), 1);
    fs::write(&file, checked).expect("the page is written");
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        // The browser needs no network.
        .args(["--disable-background-networking", "--disable-component-update"])
        .args(["--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND"])
        .args(["--enable-logging=stderr", "--v=0", "--timeout=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!view.is_dark)))
        .arg(format!("--window-size={},900", view.width))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("Chromium starts");
    let log = String::from_utf8_lossy(&output.stderr);
    let mut faults: Vec<String> =
        log.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    let dom = String::from_utf8_lossy(&output.stdout);
    match attribute(&dom, "data-faults") {
        Some(found) => {
            let found: Vec<String> = serde_json::from_str(&found).expect("a list of faults");
            faults.extend(found);
        }
        None => faults.push(format!("the page did not load: {log}")),
    }
    let texts = attribute(&dom, "data-texts").and_then(|texts| texts.parse().ok()).unwrap_or(0);
    (faults, texts)
}

fn attribute(dom: &str, name: &str) -> Option<String> {
    let (_, rest) = dom.split_once(&format!(" {name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    let letters = [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    Some(letters.iter().fold(value.to_owned(), |text, (from, to)| text.replace(from, to)))
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        // Tests run at the same time in one process.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("amalgam-pages-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks a page in all views.
pub fn look_at(page: &str) {
    let Some(chromium) = chromium() else { return };
    let folder = Folder::new();
    for view in VIEWS {
        let (found, texts) = faults(&chromium, &folder.0, page, view);
        assert!(found.is_empty(), "{view:?}:\n{}", found.join("\n"));
        assert!(texts > 0, "no picture has text");
    }
}

/// A page that shows the pictures as they are in their files.
fn page_of(pictures: &[(String, String)]) -> String {
    let style = "body { background: #ffffff } @media (prefers-color-scheme: dark) \
                 { body { background: #14171b } } svg { max-width: 100%; height: auto }";
    let figures: String = pictures
        .iter()
        .map(|(name, text)| format!("<figure id=\"{name}\" style=\"margin: 0\">{text}</figure>"))
        .collect();
    format!(
        "<!doctype html><html><head><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\">\
         <style>{style}</style></head><body>{figures}</body></html>"
    )
}

/// The pictures of the measured results, and those of the other pages.
#[test]
fn pictures_of_the_documents_can_be_read() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let mut pictures = Vec::new();
    for folder in [docs.clone(), docs.join("reproduce")] {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "svg") {
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                pictures.push((name, fs::read_to_string(&path).expect("the picture")));
            }
        }
    }
    assert!(!pictures.is_empty(), "no pictures in {}", docs.display());
    look_at(&page_of(&pictures));
}

#[test]
fn what_is_wrong_with_a_page_is_seen() {
    let Some(chromium) = chromium() else { return };
    let folder = Folder::new();
    let picture = |text: &str| {
        let svg = format!(
            "<svg viewBox=\"0 0 200 60\" width=\"200\" height=\"60\" \
             font-family=\"sans-serif\" font-size=\"12\">{text}</svg>"
        );
        page_of(&[("planted".to_owned(), svg)])
    };
    let good = "<text x=\"10\" y=\"30\" fill=\"#666666\">here</text>";
    let cases = [
        ("<text x=\"170\" y=\"30\">out of the frame</text>", "is cut off", VIEWS[0]),
        ("<text x=\"12\" y=\"31\">there</text>", "lies on", VIEWS[0]),
        ("<text x=\"100\" y=\"30\" fill=\"#1c2026\">dark</text>", "has contrast", VIEWS[1]),
        ("<script>nothing_like_it()</script>", "nothing_like_it is not defined", VIEWS[0]),
        ("<image href=\"missing.png\"/>", "did not load", VIEWS[0]),
    ];
    for (planted, expected, view) in cases {
        let (found, _) = faults(&chromium, &folder.0, &picture(&format!("{good}{planted}")), view);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{expected}: {found:?}");
    }
    let wide = page_of(&[("wide".to_owned(), "<pre>too wide for it </pre>".to_owned())]);
    let wide = wide.replace("too wide for it ", &"too wide for it ".repeat(40));
    let (found, _) = faults(&chromium, &folder.0, &wide, VIEWS[0]);
    assert!(found.iter().any(|fault| fault.contains("the page is")), "{found:?}");
    let (found, texts) = faults(&chromium, &folder.0, &picture(good), VIEWS[0]);
    assert!(texts == 1 && found.is_empty(), "{found:?}");
}
