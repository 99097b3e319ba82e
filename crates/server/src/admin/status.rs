//! What the admin address tells programs, in JSON.

use amalgam_index::Index;
use serde_json::{Value, json};

use crate::hot_keys::uri_encoded;
use crate::server::Shared;

/// The hottest keys, hottest first; null where keys may not be listed. Keys are bytes, so they are
/// written as in a URI.
pub fn hot_keys<I: Index>(shared: &Shared<I>) -> Value {
    if !shared.settings.allows_dump {
        return Value::Null;
    }
    let hottest = shared.hot_keys.hottest(shared.clock.seconds());
    let rows = hottest
        .iter()
        .map(|hot| json!({ "key": uri_encoded(&hot.key), "share": hot.share, "error": hot.error }));
    rows.collect()
}
