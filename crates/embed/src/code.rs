//! The codes that functions return, and their texts.

use std::ffi::CStr;

use amalgam_index::{IncrementError, InsertError, OpenError};

macro_rules! codes {
    ($($(#[$about:meta])+ $name:ident = $number:literal, $text:literal;)+) => {
        /// What a function returns. The numbers are those of `amalgam.h`, and stay.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Code {
            $($(#[$about])+ $name = $number),+
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What the code of this number means.
            pub fn text(number: i32) -> &'static CStr {
                match number {
                    $($number => $text,)+
                    _ => c"this is not a code of amalgam",
                }
            }
        }
    };
}

codes! {
    /// It is done.
    Ok = 0, c"done";
    /// The key has no item.
    NotFound = 1, c"the key is absent, or its item has expired";
    /// A value does not fit.
    BufferTooShort = 2, c"the buffer is shorter than the value";
    /// A pointer cannot be one.
    BadPointer = 3, c"a pointer is null or not aligned, or the map is closed";
    /// A length cannot be one.
    BadLength = 4, c"a length is larger than any object";
    /// The length of a key is invalid.
    KeyLength = 5, c"a key has 1 to 250 bytes";
    /// The item is too large.
    TooLarge = 6, c"the item is longer than the map accepts";
    /// There is no room.
    Full = 7, c"the map is full, and nothing could be evicted";
    /// The value cannot be added to.
    NotANumber = 8, c"the value is not a decimal number";
    /// No engine has this name.
    UnknownEngine = 9, c"there is no engine of this name";
    /// The settings contradict each other.
    Settings = 10, c"the memory is too small for the largest item, or exceeds the address space";
    /// The system has no memory or thread left.
    System = 11, c"the system refused the memory or the thread";
    /// A defect of the library.
    Internal = 12, c"a defect in amalgam: give up the map, and report what was printed";
}

impl From<InsertError> for Code {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::KeyLength => Self::KeyLength,
            InsertError::TooLarge => Self::TooLarge,
            InsertError::OutOfMemory => Self::Full,
            _ => Self::Internal,
        }
    }
}

impl From<IncrementError> for Code {
    fn from(error: IncrementError) -> Self {
        match error {
            IncrementError::NotANumber => Self::NotANumber,
            IncrementError::Insert(error) => error.into(),
            _ => Self::Internal,
        }
    }
}

impl From<OpenError> for Code {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Configuration(_) => Self::Settings,
            OpenError::Memory(_) => Self::System,
            _ => Self::Internal,
        }
    }
}
