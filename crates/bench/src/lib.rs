//! Placeholder head; see ARCHITECTURE.md.
