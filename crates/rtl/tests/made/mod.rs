//! Files that are made of another one and kept in the tree. `AMALGAM_WRITE=1` writes them anew.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `page` with what stands between its marks `<!-- NAME -->` and `<!-- end of NAME -->`
/// replaced with `made`.
pub fn between_marks(page: &str, name: &str, made: &str) -> String {
    let marks = [format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->")];
    let (head, rest) = page.split_once(&marks[0]).expect("the page has its first mark");
    let (_, tail) = rest.split_once(&marks[1]).expect("the page has its second mark");
    format!("{head}{}{made}{}{tail}", marks[0], marks[1])
}

/// Whether the file holds what `make` makes of its content, or is written so.
pub fn is_current(path: &str, make: impl FnOnce(&str) -> String) -> bool {
    let path = root().join(path);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let made = make(&found);
    if made != found && std::env::var_os("AMALGAM_WRITE").is_some() {
        std::fs::write(path, &made).expect("it can be written");
        return true;
    }
    made == found
}
