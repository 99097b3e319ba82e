//! Encoding of numbers, lists and enums.

use std::fmt;

/// A malformed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message ends too early, or a list is longer than the bytes left.
    Short,
    /// The message continues after its end.
    Long,
    /// An unknown enum code, or an invalid id or range.
    Invalid,
    /// The frame, or a list in it, is longer than the bound.
    TooLarge,
    /// A packet that the sender may not send: a client one of nodes, or a node one of clients.
    WrongSender,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "a message ends too early",
            Self::Long => "a message continues after its end",
            Self::Invalid => "invalid value in message",
            Self::TooLarge => "a message is too long",
            Self::WrongSender => "a message is not one that this sender may send",
        })
    }
}

impl std::error::Error for WireError {}

/// Memory of one decoded list at most, in bytes: more than any list of a node's messages takes.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Reads values from the bytes that are left.
#[derive(Clone, Copy, Debug)]
pub struct WireReader<'b> {
    left: &'b [u8],
}

impl<'b> WireReader<'b> {
    /// A reader of all of `bytes`.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { left: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    ///
    /// [`WireError::Short`].
    pub fn take(&mut self, count: usize) -> Result<&'b [u8], WireError> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(WireError::Short)?;
        self.left = left;
        Ok(taken)
    }

    /// The next byte, without consuming it; none at the end.
    pub fn peek(&self) -> Option<u8> {
        self.left.first().copied()
    }

    /// The number of bytes left.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The bytes between this reader's position and that of `later`. Requires: `later` is a copy of
    /// this one that has read further.
    pub fn until(&self, later: &Self) -> &'b [u8] {
        &self.left[..self.left.len() - later.left.len()]
    }
}

/// A type with a wire format.
pub trait Wire: Sized {
    /// The fewest bytes of a value, so that a list cannot claim more elements than there are bytes.
    const BYTES_MIN: usize;

    /// Appends the value.
    fn encode(&self, to: &mut Vec<u8>);

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the bytes are not a value.
    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError>;

    /// Appends values without their number.
    fn encode_all(list: &[Self], to: &mut Vec<u8>) {
        list.iter().for_each(|element| element.encode(to));
    }

    /// Reads `count` values. Requires: at least [`Self::BYTES_MIN`] bytes are left for each.
    ///
    /// # Errors
    ///
    /// [`WireError`] if one of them is malformed.
    fn decode_many(count: usize, from: &mut WireReader<'_>) -> Result<Vec<Self>, WireError> {
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(Self::decode(from)?);
        }
        Ok(list)
    }

    /// Skips a value, with the same checks as reading it.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
        Self::decode(from).map(drop)
    }

    /// Skips `count` values. Requires: at least [`Self::BYTES_MIN`] bytes are left for each.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    fn skip_many(count: usize, from: &mut WireReader<'_>) -> Result<(), WireError> {
        (0..count).try_for_each(|_| Self::skip(from))
    }

    /// Reads a value that takes up all bytes.
    ///
    /// # Errors
    ///
    /// [`WireError`]; [`WireError::Long`] if bytes are left.
    fn decode_all(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = WireReader::new(bytes);
        let decoded = Self::decode(&mut from)?;
        if from.left() == 0 { Ok(decoded) } else { Err(WireError::Long) }
    }
}

macro_rules! wire_numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            const BYTES_MIN: usize = size_of::<$number>();

            fn encode(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
                let bytes = from.take(size_of::<$number>())?;
                Ok(Self::from_le_bytes(bytes.try_into().map_err(|_| WireError::Short)?))
            }
        }
    )*};
}

wire_numbers!(u16, u32, u64, i64);

/// Byte lists are copied whole: most of the traffic is values.
impl Wire for u8 {
    const BYTES_MIN: usize = 1;

    fn encode(&self, to: &mut Vec<u8>) {
        to.push(*self);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(from.take(1)?[0])
    }

    fn encode_all(list: &[Self], to: &mut Vec<u8>) {
        to.extend_from_slice(list);
    }

    fn decode_many(count: usize, from: &mut WireReader<'_>) -> Result<Vec<Self>, WireError> {
        Ok(from.take(count)?.to_vec())
    }

    fn skip_many(count: usize, from: &mut WireReader<'_>) -> Result<(), WireError> {
        from.take(count).map(drop)
    }
}

impl<T: Wire> Wire for Box<T> {
    const BYTES_MIN: usize = T::BYTES_MIN;

    fn encode(&self, to: &mut Vec<u8>) {
        T::encode(self, to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        T::decode(from).map(Box::new)
    }
}

/// Text in UTF-8.
impl Wire for String {
    const BYTES_MIN: usize = 4;

    fn encode(&self, to: &mut Vec<u8>) {
        (self.len() as u32).encode(to);
        to.extend_from_slice(self.as_bytes());
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        let count = u32::decode(from)? as usize;
        let bytes = from.take(count)?.to_vec();
        Self::from_utf8(bytes).map_err(|_| WireError::Invalid)
    }
}

impl Wire for bool {
    const BYTES_MIN: usize = 1;

    fn encode(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid),
        }
    }
}

/// Lists of up to 2^32 elements; senders keep them far below, by the bound of a frame.
impl<T: Wire> Wire for Vec<T> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, to: &mut Vec<u8>) {
        (self.len() as u32).encode(to);
        T::encode_all(self, to);
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        T::decode_many(count_of::<T>(from)?, from)
    }

    fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
        T::skip_many(count_of::<T>(from)?, from)
    }
}

/// Reads the length of a list and checks that enough bytes are left.
fn count_of<T: Wire>(from: &mut WireReader<'_>) -> Result<usize, WireError> {
    let count = u32::decode(from)? as usize;
    if count > from.left() / T::BYTES_MIN {
        return Err(WireError::Short);
    }
    // Elements of few bytes may take many times as much once they are decoded.
    if count.saturating_mul(size_of::<T>()) > LIST_BYTES_MAX {
        return Err(WireError::TooLarge);
    }
    Ok(count)
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, to: &mut Vec<u8>) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, to: &mut Vec<u8>) {
        self.is_ok().encode(to);
        match self {
            Ok(value) => value.encode(to),
            Err(error) => error.encode(to),
        }
    }

    fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(if bool::decode(from)? { Ok(T::decode(from)?) } else { Err(E::decode(from)?) })
    }

    fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
        if bool::decode(from)? { T::skip(from) } else { E::skip(from) }
    }
}

macro_rules! wire_tuples {
    ($(($($name:ident $place:tt),*)),*) => {$(
        impl<$($name: Wire),*> Wire for ($($name,)*) {
            const BYTES_MIN: usize = 0 $(+ $name::BYTES_MIN)*;

            fn encode(&self, to: &mut Vec<u8>) {
                $(self.$place.encode(to);)*
            }

            fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
                Ok(($($name::decode(from)?,)*))
            }

            fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
                $($name::skip(from)?;)*
                Ok(())
            }
        }
    )*};
}

wire_tuples!((A 0, B 1), (A 0, B 1, C 2), (A 0, B 1, C 2, D 3));

/// A struct is encoded as its fields in the order given here.
macro_rules! wire_struct {
    ($name:ty { $($field:ident: $kind:ty),* $(,)? }) => {
        impl Wire for $name {
            const BYTES_MIN: usize = 0 $(+ <$kind as Wire>::BYTES_MIN)*;

            fn encode(&self, to: &mut Vec<u8>) {
                $(self.$field.encode(to);)*
            }

            fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
                Ok(Self { $($field: <$kind as Wire>::decode(from)?),* })
            }

            fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
                $(<$kind as Wire>::skip(from)?;)*
                Ok(())
            }
        }
    };
}

/// An enum is encoded as one byte, whose meaning never changes, and the variant's fields.
macro_rules! wire_enum {
    (@is_bare) => { true };
    (@is_bare $($fields:tt)+) => { false };
    (for $parameter:ident, $($rest:tt)*) => {
        wire_enum!(@ [<$parameter: Wire>] $($rest)*);
    };
    (@ [$($parameters:tt)*] $name:ty { $($code:literal $variant:ident
        $({ $($field:ident),* })? $(( $($place:ident),* ))?),* $(,)? }) => {
        impl $($parameters)* Wire for $name {
            const BYTES_MIN: usize = 1;

            fn encode(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($place),* ))? => {
                        to.push($code);
                        $($($field.encode(to);)*)?
                        $($($place.encode(to);)*)?
                    })*
                }
            }

            fn decode(from: &mut WireReader<'_>) -> Result<Self, WireError> {
                Ok(match u8::decode(from)? {
                    $($code => {
                        $($(let $field = Wire::decode(from)?;)*)?
                        $($(let $place = Wire::decode(from)?;)*)?
                        Self::$variant $({ $($field),* })? $(( $($place),* ))?
                    })*
                    _ => return Err(WireError::Invalid),
                })
            }

            fn skip(from: &mut WireReader<'_>) -> Result<(), WireError> {
                let is_bare = match from.peek() {
                    $(Some($code) => wire_enum!(
                        @is_bare $({ $($field),* })? $(( $($place),* ))?
                    ),)*
                    _ => false,
                };
                // Most variants that are skipped have no fields.
                if is_bare { from.take(1).map(drop) } else { Self::decode(from).map(drop) }
            }
        }
    };
    ($($all:tt)*) => {
        wire_enum!(@ [] $($all)*);
    };
}

pub(crate) use {wire_enum, wire_struct};
