//! A [`Map`] of typed keys and values, which a codec turns into bytes.
//!
//! Thread safety: as [`Map`]; each operation borrows a handle from the map's pool.

use std::fmt::{Debug, Display, Formatter, Result as FormatResult};
use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use super::Map;
use super::handle::InsertError;
use crate::Engine;
use crate::mercury::Mercury;

/// How values of type `T` are kept as bytes. A type with this trait chooses the form for a whole
/// [`TypedMap`]; [`Plain`] knows numbers, text and bytes. This crate depends on no serializer: for
/// one of yours, write its two calls into a codec for all types that it knows.
///
/// ```
/// use amalgam_index::{Codec, Map, MapBuilder, Plain, TypedMap};
///
/// #[derive(Debug, PartialEq)]
/// struct Point(u32, u32);
///
/// /// Keys as [`Plain`] keeps them, and points.
/// struct Points;
///
/// impl Codec<String> for Points {
///     fn encode(value: &String, into: &mut Vec<u8>) {
///         Plain::encode(value, into);
///     }
///     fn decode(bytes: &[u8]) -> Option<String> {
///         Plain::decode(bytes)
///     }
/// }
///
/// impl Codec<Point> for Points {
///     fn encode(value: &Point, into: &mut Vec<u8>) {
///         Plain::encode(&value.0, into);
///         Plain::encode(&value.1, into);
///     }
///     fn decode(bytes: &[u8]) -> Option<Point> {
///         let (x, y) = bytes.split_at_checked(4)?;
///         Some(Point(Plain::decode(x)?, Plain::decode(y)?))
///     }
/// }
///
/// let map: Map = MapBuilder::new().open()?;
/// let points: TypedMap<String, Point, Points> = TypedMap::new(map);
/// points.insert(&"home".to_owned(), &Point(1, 2)).expect("it fits");
/// assert_eq!(points.get(&"home".to_owned()), Ok(Some(Point(1, 2))));
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
///
/// With serde and postcard, for all types at once:
///
/// ```text
/// impl<T: Serialize + DeserializeOwned> Codec<T> for Postcard {
///     fn encode(value: &T, into: &mut Vec<u8>) {
///         into.extend(postcard::to_stdvec(value).expect("it can be serialized"));
///     }
///     fn decode(bytes: &[u8]) -> Option<T> {
///         postcard::from_bytes(bytes).ok()
///     }
/// }
/// ```
///
/// With zerocopy, for types without padding: `into.extend_from_slice(value.as_bytes())` and
/// `T::read_from_bytes(bytes).ok()`.
pub trait Codec<T> {
    /// Appends the bytes of `value`. Equal keys must have equal bytes, and others different ones.
    fn encode(value: &T, into: &mut Vec<u8>);

    /// The value that [`encode`](Self::encode) made `bytes` of; None if there is none.
    fn decode(bytes: &[u8]) -> Option<T>;
}

/// The [`Codec`] of numbers (little-endian, of fixed length), text and bytes.
///
/// ```
/// use amalgam_index::{Codec, Plain};
///
/// let mut bytes = Vec::new();
/// Plain::encode(&258_u16, &mut bytes);
/// assert_eq!(bytes, [2, 1]);
/// assert_eq!(Plain::decode(&bytes), Some(258_u16));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Plain;

macro_rules! plain_numbers {
    ($($number:ty)+) => {
        $(impl Codec<$number> for Plain {
            fn encode(value: &$number, into: &mut Vec<u8>) {
                into.extend_from_slice(&value.to_le_bytes());
            }

            fn decode(bytes: &[u8]) -> Option<$number> {
                bytes.try_into().ok().map(<$number>::from_le_bytes)
            }
        })+
    };
}

plain_numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

impl Codec<String> for Plain {
    fn encode(value: &String, into: &mut Vec<u8>) {
        into.extend_from_slice(value.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<String> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl Codec<Vec<u8>> for Plain {
    fn encode(value: &Vec<u8>, into: &mut Vec<u8>) {
        into.extend_from_slice(value);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

impl<const N: usize> Codec<[u8; N]> for Plain {
    fn encode(value: &[u8; N], into: &mut Vec<u8>) {
        into.extend_from_slice(value);
    }

    fn decode(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
}

/// The reason why a [`TypedMap`] has no answer.
///
/// ```
/// use amalgam_index::{Map, MapBuilder, TypedError, TypedMap};
///
/// # let map: Map = MapBuilder::new().open()?;
/// let ages: TypedMap<String, u32> = TypedMap::new(map);
/// ages.map().handle().insert(b"Ada", b"36")?;
/// assert_eq!(ages.get(&"Ada".to_owned()), Err(TypedError::Decode), "four bytes are a u32");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypedError {
    /// The value could not be stored.
    Insert(InsertError),
    /// The codec makes no value of the bytes that are stored: it does not read what it writes, or
    /// another program part stored them through [`TypedMap::map`].
    Decode,
}

impl Display for TypedError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        match self {
            Self::Insert(error) => Display::fmt(error, formatter),
            Self::Decode => formatter.write_str("the codec cannot read the stored value"),
        }
    }
}

impl std::error::Error for TypedError {}

impl From<InsertError> for TypedError {
    fn from(error: InsertError) -> Self {
        Self::Insert(error)
    }
}

/// A [`Map`] from `K` to `V`, which the codec `C` turns into bytes. Encoded keys have 1 to 250
/// bytes; a longer one is never found, and is refused when it is stored.
///
/// ```
/// use amalgam_index::{Map, MapBuilder, TypedMap};
///
/// let map: Map = MapBuilder::new().open()?;
/// let ages: TypedMap<String, u32> = TypedMap::new(map);
/// ages.insert(&"Ada".to_owned(), &36).expect("it fits");
/// assert_eq!(ages.get(&"Ada".to_owned()), Ok(Some(36)));
/// assert_eq!(ages.get_or_insert_with(&"Charles".to_owned(), || 79), Ok(79));
/// assert!(ages.remove(&"Ada".to_owned()));
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
pub struct TypedMap<K, V, C = Plain, E: Engine = Mercury> {
    map: Map<E>,
    /// Owns neither keys nor values, so that any may be shared between threads.
    types: PhantomData<fn(K, C) -> V>,
}

impl<K, V, C, E: Engine> Debug for TypedMap<K, V, C, E> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        formatter.debug_struct("TypedMap").finish_non_exhaustive()
    }
}

impl<K, V, C: Codec<K> + Codec<V>, E: Engine> TypedMap<K, V, C, E> {
    /// A typed view of a map.
    ///
    /// ```
    /// use amalgam_index::{Map, MapBuilder, TypedMap};
    ///
    /// let map: Map = MapBuilder::new().open()?;
    /// let squares: TypedMap<u32, u64> = TypedMap::new(map);
    /// squares.insert(&3, &9).expect("it fits");
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn new(map: Map<E>) -> Self {
        Self { map, types: PhantomData }
    }

    /// The map of bytes, for statistics and whatever else has no typed form.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert_eq!(ages.map().statistics().items, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map(&self) -> &Map<E> {
        &self.map
    }

    /// The value of `key`; None if the key is absent or its item has expired.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert_eq!(ages.get(&"Ada".to_owned()), Ok(Some(36)));
    /// assert_eq!(ages.get(&"Charles".to_owned()), Ok(None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the codec cannot read the value.
    pub fn get(&self, key: &K) -> Result<Option<V>, TypedError> {
        let value = self.map.with(|handle| handle.get_with(&key_of::<K, C>(key), C::decode));
        value.map(|value| value.ok_or(TypedError::Decode)).transpose()
    }

    /// The values of many keys, in their order, as [`Handle::get_many`](crate::Handle::get_many)
    /// finds them.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// let names = ["Charles", "Ada"].map(str::to_owned);
    /// assert_eq!(ages.get_many(&names), Ok(vec![None, Some(36)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the codec cannot read a value.
    pub fn get_many(&self, keys: &[K]) -> Result<Vec<Option<V>>, TypedError> {
        let encoded: Vec<_> = keys.iter().map(key_of::<K, C>).collect();
        let encoded: Vec<_> = encoded.iter().map(|key| &key[..]).collect();
        let (mut values, mut is_readable) = (Vec::new(), true);
        values.resize_with(keys.len(), || None);
        self.map.with(|handle| {
            handle.get_many(&encoded, |position, bytes| {
                values[position] = C::decode(bytes);
                is_readable &= values[position].is_some();
            })
        });
        if is_readable { Ok(values) } else { Err(TypedError::Decode) }
    }

    /// Stores `value` under `key` in place of any older value.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &35)?;
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert_eq!(ages.get(&"Ada".to_owned()), Ok(Some(36)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail.
    pub fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        let value = value_of::<V, C>(value);
        self.map.with(|handle| handle.insert(&key_of::<K, C>(key), &value))
    }

    /// Stores `value` under `key` and lets it expire, as
    /// [`Handle::insert_for`](crate::Handle::insert_for) does.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert_for(&"Ada".to_owned(), &36, std::time::Duration::from_secs(60))?;
    /// assert_eq!(ages.get(&"Ada".to_owned()), Ok(Some(36)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail.
    pub fn insert_for(&self, key: &K, value: &V, ttl: Duration) -> Result<(), InsertError> {
        let value = value_of::<V, C>(value);
        self.map.with(|handle| handle.insert_for(&key_of::<K, C>(key), &value, ttl))
    }

    /// Whether `key` has a value, which is not decoded.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert!(ages.contains(&"Ada".to_owned()) && !ages.contains(&"Charles".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains(&self, key: &K) -> bool {
        self.map.with(|handle| handle.contains(&key_of::<K, C>(key)))
    }

    /// Stores `value` under `key` if that is absent. Returns whether it was.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// assert_eq!(ages.insert_if_absent(&"Ada".to_owned(), &36), Ok(true));
    /// assert_eq!(ages.insert_if_absent(&"Ada".to_owned(), &99), Ok(false));
    /// assert_eq!(ages.get(&"Ada".to_owned()), Ok(Some(36)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail.
    pub fn insert_if_absent(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        let value = value_of::<V, C>(value);
        self.map.with(|handle| handle.insert_if_absent(&key_of::<K, C>(key), &value))
    }

    /// Replaces the value of `key` by what `change` makes of it, as one linearizable operation:
    /// [`Handle::update`](crate::Handle::update), whose limits it has. It compares and swaps if
    /// `change` returns None for a value other than the expected one. `change` should use no handle
    /// of the map's pool.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// let name = "Ada".to_owned();
    /// let birthday = |age: Option<u32>| age.map(|age| age + 1);
    /// assert_eq!(ages.update(&name, birthday), Ok(false));
    /// ages.insert(&name, &36)?;
    /// assert_eq!(ages.update(&name, birthday), Ok(true));
    /// assert_eq!(ages.update(&name, |age| (age == Some(36)).then_some(99)), Ok(false));
    /// assert_eq!(ages.get(&name), Ok(Some(37)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail, or the codec cannot read the value,
    /// which then stays.
    pub fn update(
        &self,
        key: &K,
        mut change: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<bool, TypedError> {
        let mut is_readable = true;
        let change = |bytes: Option<&[u8]>| {
            let old = bytes.map(C::decode);
            is_readable = !matches!(old, Some(None));
            if !is_readable {
                return None;
            }
            change(old.flatten()).map(|value| value_of::<V, C>(&value))
        };
        let is_stored = self.map.with(|handle| handle.update(&key_of::<K, C>(key), change))?;
        if is_readable { Ok(is_stored) } else { Err(TypedError::Decode) }
    }

    /// Calls `visit` with each key and value that the codec can read, as
    /// [`Handle::for_each`](crate::Handle::for_each) finds them: no snapshot, and some perhaps more
    /// than once. `visit` should be short, and use no handle of the map's pool.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// ages.for_each(|name, age| println!("{name} is {age} years old"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each(&self, mut visit: impl FnMut(K, V)) {
        self.map.with(|handle| {
            handle.for_each(|key, value| {
                if let (Some(key), Some(value)) = (C::decode(key), C::decode(value)) {
                    visit(key, value);
                }
            });
        });
    }

    /// Removes the items for which `keep` is false, and those that the codec cannot read; returns
    /// how many: as [`Handle::retain`](crate::Handle::retain), whose limits it has. `keep` should
    /// use no handle of the map's pool.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// ages.insert(&"Charles".to_owned(), &79)?;
    /// assert_eq!(ages.retain(|_, age| *age < 65), 1);
    /// assert!(ages.contains(&"Ada".to_owned()) && !ages.contains(&"Charles".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> u64 {
        self.map.with(|handle| {
            handle.retain(|key, value| match (C::decode(key), C::decode(value)) {
                (Some(key), Some(value)) => keep(&key, &value),
                _ => false,
            })
        })
    }

    /// Removes all items, and returns how many. Items that are inserted meanwhile may stay.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert_eq!(ages.clear(), 1);
    /// assert!(!ages.contains(&"Ada".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&self) -> u64 {
        self.map.with(|handle| handle.clear())
    }

    /// Removes the item of `key`. Returns whether there was one.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// ages.insert(&"Ada".to_owned(), &36)?;
    /// assert!(ages.remove(&"Ada".to_owned()));
    /// assert!(!ages.remove(&"Ada".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: &K) -> bool {
        self.map.with(|handle| handle.remove(&key_of::<K, C>(key)))
    }

    /// The value of `key`, or else that of `make`, which is stored: as
    /// [`Handle::get_or_insert_with`](crate::Handle::get_or_insert_with), whose limits it has.
    /// `make` should use no handle of the map's pool.
    ///
    /// ```
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// assert_eq!(ages.get_or_insert_with(&"Ada".to_owned(), || 36), Ok(36));
    /// assert_eq!(ages.get_or_insert_with(&"Ada".to_owned(), || 99), Ok(36));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail, or the codec cannot read the value.
    pub fn get_or_insert_with(&self, key: &K, make: impl FnOnce() -> V) -> Result<V, TypedError> {
        let make = || value_of::<V, C>(&make());
        let bytes =
            self.map.with(|handle| handle.get_or_insert_with(&key_of::<K, C>(key), make))?;
        C::decode(&bytes).ok_or(TypedError::Decode)
    }

    /// The value of `key`, or else that of the future `make`, which is stored: as
    /// [`Map::get_or_insert_async`], whose limits it has.
    ///
    /// ```
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// #         if let Poll::Ready(output) = poll { return output; }
    /// #     }
    /// # }
    /// # let map = amalgam_index::MapBuilder::new().open()?;
    /// # let ages: amalgam_index::TypedMap<String, u32> = amalgam_index::TypedMap::new(map);
    /// let name = "Ada".to_owned();
    /// assert_eq!(block_on(ages.get_or_insert_async(&name, async { 36 })), Ok(36));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`Handle::insert`](crate::Handle::insert) would fail, or the codec cannot read the value.
    pub async fn get_or_insert_async(
        &self,
        key: &K,
        make: impl Future<Output = V>,
    ) -> Result<V, TypedError> {
        let key = key_of::<K, C>(key);
        let make = async { value_of::<V, C>(&make.await) };
        let bytes = self.map.get_or_insert_async(&key, make).await?;
        C::decode(&bytes).ok_or(TypedError::Decode)
    }
}

fn key_of<K, C: Codec<K>>(key: &K) -> Vec<u8> {
    value_of::<K, C>(key)
}

fn value_of<V, C: Codec<V>>(value: &V) -> Vec<u8> {
    let mut bytes = Vec::new();
    C::encode(value, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapBuilder, Memc3};

    fn open<E: Engine>() -> Map<E> {
        MapBuilder::new().memory_bytes(8 << 20).max_item_bytes(1 << 16).open().expect("opens")
    }

    #[test]
    fn keys_and_values_keep_their_types() {
        let map: TypedMap<u32, String, Plain, Memc3> = TypedMap::new(open());
        for number in 0..200 {
            assert_eq!(map.insert(&number, &number.to_string()), Ok(()));
        }
        assert!(map.remove(&7) && !map.remove(&7));
        let keys = [3, 7, 199, 200];
        let values = map.get_many(&keys).expect("readable");
        assert_eq!(values, [Some("3".to_owned()), None, Some("199".to_owned()), None]);
        assert_eq!(map.get_or_insert_with(&7, || "seven".to_owned()), Ok("seven".to_owned()));
        assert_eq!(map.get(&7), Ok(Some("seven".to_owned())));
        assert_eq!(map.insert_for(&7, &String::new(), Duration::MAX), Ok(()));
        assert_eq!(map.get(&7), Ok(Some(String::new())));
        assert_eq!(map.map().len(), 200);
    }

    #[test]
    fn typed_maps_are_updated_walked_and_emptied() {
        let map: TypedMap<u32, u64, Plain, Memc3> = TypedMap::new(open());
        assert_eq!(map.update(&1, |old| old), Ok(false), "absent, and stays so");
        assert_eq!(map.insert_if_absent(&1, &10), Ok(true));
        assert_eq!(map.insert_if_absent(&1, &99), Ok(false));
        assert_eq!(map.update(&1, |old| old.map(|old| old + 1)), Ok(true));
        assert_eq!(map.update(&2, |old| Some(old.unwrap_or(20))), Ok(true));
        assert_eq!(map.map().with(|handle| handle.insert(b"five5", b"no number")), Ok(()));
        let mut items = Vec::new();
        map.for_each(|key, value| items.push((key, value)));
        items.sort_unstable();
        assert_eq!(items, [(1, 11), (2, 20)]);
        assert_eq!(map.retain(|key, value| *key == 1 && *value == 11), 2);
        assert!(map.contains(&1) && !map.contains(&2));
        assert_eq!((map.clear(), map.contains(&1)), (1, false));
    }

    /// A map may be shared whatever its types are, as it holds none of them.
    #[test]
    fn typed_maps_are_shared() {
        fn is_shared<T: Send + Sync>(_: &T) {}
        is_shared(&TypedMap::<std::rc::Rc<u8>, std::cell::Cell<u8>, Plain, Memc3> {
            map: open(),
            types: PhantomData,
        });
    }

    #[test]
    fn what_the_codec_cannot_read_or_store_is_an_error() {
        let map: TypedMap<String, u64> = TypedMap::new(open());
        let (key, long) = ("key".to_owned(), "k".repeat(251));
        assert_eq!(map.map().with(|handle| handle.insert(b"key", b"short")), Ok(()));
        assert_eq!(map.get(&key), Err(TypedError::Decode));
        assert_eq!(map.get_many(std::slice::from_ref(&key)), Err(TypedError::Decode));
        assert_eq!(map.get_or_insert_with(&key, || 1), Err(TypedError::Decode));
        let unread = map.update(&key, |_| unreachable!("there is no value to change"));
        assert_eq!(unread, Err(TypedError::Decode));
        assert_eq!(map.map().with(|handle| handle.get(b"key")), Some(b"short".to_vec()));
        assert_eq!(map.get(&long), Ok(None));
        assert_eq!(map.insert(&long, &1), Err(InsertError::KeyLength));
        let refused = map.get_or_insert_with(&String::new(), || unreachable!("not called"));
        assert_eq!(refused, Err(TypedError::Insert(InsertError::KeyLength)));
    }
}
