//! The handshake of a connection between nodes, or of a client with a node.
//!
//! Each side sends a hello and a nonce. Then the dialer proves that it knows the cluster's join
//! token, and once that is verified the acceptor does: whoever does not know the token learns
//! nothing that guesses could be tried on. A proof is an HMAC over both sides' hellos with their
//! nonces. Nothing else is read before the proof was right. On a connection that TLS secures all
//! this is inside, and the proof names the session too. An operator proves the operator token in
//! place of the join token.
//!
//! Invariants of this module:
//! 1. A token is never sent, and a proof is invalid on any other connection and in the other
//!    direction.
//! 2. Before the proof is verified, at most [`GREETING_BYTES_MAX`] bytes of the other side are
//!    kept.
//! 3. The acceptor sends nothing that depends on a token before the dialer has proved that it knows
//!    it.

use std::fmt;
use std::sync::Arc;

use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Hello, HelloError, Wire, WireError, WireReader};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::clock::boot_ms;
use amalgam_tls::{MutualSession, MutualTls, TlsError};

const NONCE_BYTES: usize = 16;
const PROOF_BYTES: usize = 32;
const LENGTH_BYTES: usize = 2;
/// The longest hello with its nonce and length.
const GREETING_BYTES_MAX: usize = 256;
/// The first version whose proof covers the hellos, which name the sender and its role.
const WHOLE_HELLO_SINCE: u16 = 7;
/// The first version whose greeting has the sender's clock.
const CLOCK_SINCE: u16 = 8;
/// What the acceptor sends in place of its proof when the dialer's was wrong: no proof is that.
const REFUSAL: [u8; PROOF_BYTES] = [0; PROOF_BYTES];
/// The first byte of what TLS says at the beginning: an alert, or a greeting of its own. As the
/// length of a hello, with the byte after it, it would be too long.
const TLS_FIRST: std::ops::RangeInclusive<u8> = 0x15..=0x16;
const TLS_SECOND: u8 = 3;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The two sides are of different clusters, or share no wire version.
    Hello(HelloError),
    /// The other side's hello is malformed.
    Wire(WireError),
    /// The other side has another token.
    Token,
    /// The other side speaks TLS, this side does not.
    Secured,
    /// TLS failed.
    Tls(TlsError),
    /// The system's random numbers cannot be read.
    Random,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(error) => error.fmt(f),
            Self::Wire(error) => write!(f, "the other side's hello is malformed: {error}"),
            Self::Token => f.write_str(
                "the other side has another join token (--join-token-file) or operator token \
                 (--operator-token-file)",
            ),
            Self::Secured => f.write_str(
                "the other side speaks TLS, and this side has no certificate (--tls-cert)",
            ),
            Self::Tls(error) => error.fmt(f),
            Self::Random => f.write_str("the system's random numbers cannot be read"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<TlsError> for HandshakeError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl HandshakeError {
    /// Whether the other side is a node and one side refuses the other, which another try would not
    /// change.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Token | Self::Secured | Self::Tls(_) | Self::Hello(HelloError::Version(_))
        )
    }
}

/// What a process proves with that it may take part in a cluster.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The join token.
    pub token: String,
    /// The operator token, which permits to drain nodes and to move chunks. A node verifies it, a
    /// client proves it in place of the join token. Empty for none.
    pub operator_token: String,
    /// The certificates; None if the cluster's connections are not secured.
    pub tls: Option<Arc<MutualTls>>,
}

impl From<&str> for Credentials {
    fn from(token: &str) -> Self {
        Self { token: token.to_owned(), ..Self::default() }
    }
}

impl Credentials {
    /// The same without the operator token.
    pub fn without_operator(&self) -> Self {
        Self { operator_token: String::new(), ..self.clone() }
    }
}

impl From<&Credentials> for Credentials {
    fn from(same: &Credentials) -> Self {
        same.clone()
    }
}

/// What a process presents in every handshake.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's number; 0 for a client, which accepts any.
    pub cluster: u64,
    /// The node; None for a client.
    pub me: Option<Peer>,
    key: hmac::Key,
    /// The key of operators: a client that has one is an operator.
    operator: Option<hmac::Key>,
    tls: Option<Arc<MutualTls>>,
}

impl Identity {
    /// The identity of a node, or of a client.
    pub fn new(cluster: u64, me: Option<Peer>, credentials: &Credentials) -> Self {
        let key_of = |token: &str| hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
        let key = key_of(&credentials.token);
        let operator = Some(&credentials.operator_token).filter(|token| !token.is_empty());
        let operator = operator.map(|token| key_of(token));
        Self { cluster, me, key, operator, tls: credentials.tls.clone() }
    }

    /// Whether operators prove a token of their own.
    pub fn has_operator(&self) -> bool {
        self.operator.is_some()
    }

    /// Whether this is a client that proves the operator token.
    fn is_operator(&self) -> bool {
        self.me.is_none() && self.has_operator()
    }

    /// The TLS session of a new connection; None if connections are not secured.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn session(&self, is_dialer: bool) -> Result<Option<MutualSession>, TlsError> {
        self.tls.as_ref().map(|tls| tls.session(is_dialer)).transpose()
    }

    /// Reads changed certificates again.
    pub fn refresh(&self) {
        match self.tls.as_ref().map(|tls| tls.refresh()) {
            Some(Ok(true)) => log::info!("changed certificates were read and are in use"),
            Some(Err(error)) => {
                log::error!(error; "changed certificates are unusable; the previous ones stay")
            }
            Some(Ok(false)) | None => {}
        }
    }
}

/// What the other side sent first.
#[derive(Debug)]
struct Greeting {
    hello: Hello,
    /// The version that both sides speak.
    wire_version: u16,
    is_operator: bool,
    /// The sender's clock when it sent this; None if its version does not say.
    clock_ms: Option<u64>,
    bytes: Vec<u8>,
}

/// The nonce at the end of a greeting. Requires: the greeting is long enough.
fn nonce(greeting: &[u8]) -> &[u8] {
    &greeting[greeting.len() - NONCE_BYTES..]
}

/// One side of a handshake. Bytes go in and come out; the caller owns the socket.
#[derive(Debug)]
pub struct Handshake {
    identity: Identity,
    is_dialer: bool,
    /// What this side sent: its hello, its role and its nonce.
    own: Vec<u8>,
    theirs: Option<Greeting>,
    received: Vec<u8>,
    /// The binding of the TLS session; empty if the connection is not secured.
    binding: Vec<u8>,
}

impl Handshake {
    /// Starts a handshake and appends what to send to `out`. `is_dialer` is the side that opened
    /// the connection.
    ///
    /// # Errors
    ///
    /// [`HandshakeError::Random`].
    pub fn start(
        identity: Identity,
        is_dialer: bool,
        out: &mut Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce).map_err(|_| HandshakeError::Random)?;
        let mut own = Vec::new();
        Hello::new(identity.cluster, identity.me).encode(&mut own);
        own.push(u8::from(identity.is_operator()));
        own.extend_from_slice(&boot_ms().to_le_bytes());
        own.extend_from_slice(&nonce);
        out.extend_from_slice(&(own.len() as u16).to_le_bytes());
        out.extend_from_slice(&own);
        let (received, binding) = Default::default();
        Ok(Self { identity, is_dialer, own, theirs: None, received, binding })
    }

    /// Sets the binding of the TLS session. Requires: nothing was fed yet.
    pub fn bind(&mut self, binding: &[u8]) {
        self.binding = binding.to_vec();
    }

    /// What the proof of one side is over.
    fn transcript(&self, theirs: &Greeting, of_dialer: bool) -> Vec<u8> {
        let is_own = of_dialer == self.is_dialer;
        let side = [u8::from(of_dialer)];
        if theirs.wire_version < WHOLE_HELLO_SINCE {
            let (own, other) = (nonce(&self.own), nonce(&theirs.bytes));
            let (challenge, own) = if is_own { (other, own) } else { (own, other) };
            return [&side, challenge, own, &self.binding].concat();
        }
        let (dialer, acceptor) =
            if self.is_dialer { (&self.own, &theirs.bytes) } else { (&theirs.bytes, &self.own) };
        let length = |greeting: &[u8]| (greeting.len() as u16).to_le_bytes();
        let (first, second) = (length(dialer), length(acceptor));
        [&side, &first[..], dialer, &second, acceptor, &self.binding].concat()
    }

    /// The key of this connection's proofs; None if the dialer claims to be an operator, and this
    /// side knows no operator token.
    fn key(&self, theirs: &Greeting) -> Option<&hmac::Key> {
        // Only a dialer can claim it: a node proves the operator's token to nobody else.
        let is_operator =
            if self.is_dialer { self.identity.is_operator() } else { theirs.is_operator };
        if is_operator { self.identity.operator.as_ref() } else { Some(&self.identity.key) }
    }

    /// Whether the other side has proved the operator token. Requires: the handshake is complete.
    pub fn is_operator(&self) -> bool {
        self.theirs.as_ref().is_some_and(|theirs| theirs.is_operator)
    }

    /// The other side's clock, in its [`boot_ms`], when it began; None if its version does not say.
    pub fn clock_ms(&self) -> Option<u64> {
        self.theirs.as_ref().and_then(|theirs| theirs.clock_ms)
    }

    /// Handles bytes of the other side. Returns its hello and the bytes after the handshake once
    /// that is complete.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`]; the connection must be closed then.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Hello, Vec<u8>)>, HandshakeError> {
        self.received.extend_from_slice(bytes);
        if self.theirs.is_none() && !self.take_hello(out)? {
            return Ok(None);
        }
        let Some(theirs) = &self.theirs else { return Ok(None) };
        let Some((proof, rest)) = self.received.split_at_checked(PROOF_BYTES) else {
            return Ok(None);
        };
        let said = self.transcript(theirs, !self.is_dialer);
        let key = self.key(theirs);
        let Some(key) = key.filter(|key| hmac::verify(key, &said, proof).is_ok()) else {
            if !self.is_dialer {
                out.extend_from_slice(&REFUSAL);
            }
            return Err(HandshakeError::Token);
        };
        if !self.is_dialer {
            let said = self.transcript(theirs, false);
            out.extend_from_slice(hmac::sign(key, &said).as_ref());
        }
        Ok(Some((theirs.hello, rest.to_vec())))
    }

    /// Reads the other side's hello, if it has arrived. The dialer answers with its proof.
    fn take_hello(&mut self, out: &mut Vec<u8>) -> Result<bool, HandshakeError> {
        let Some((length, rest)) = self.received.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(false);
        };
        let [first, second] = *length;
        if TLS_FIRST.contains(&first) && second == TLS_SECOND {
            return Err(HandshakeError::Secured);
        }
        let length = usize::from(u16::from_le_bytes(*length));
        if length > GREETING_BYTES_MAX {
            return Err(HandshakeError::Hello(HelloError::Foreign));
        }
        let Some(greeting) = rest.get(..length) else { return Ok(false) };
        let mut reader = WireReader::new(greeting);
        let foreign = |_| HandshakeError::Hello(HelloError::Foreign);
        let hello = Hello::decode(&mut reader).map_err(foreign)?;
        let mut own = Hello::new(self.identity.cluster, self.identity.me);
        // A client accepts any cluster.
        let is_client = self.identity.me.is_none() || hello.from.is_none();
        if is_client {
            own.cluster = hello.cluster;
        }
        // Before the nonce is read: an unknown version may have it elsewhere.
        let wire_version = own.check(&hello).map_err(HandshakeError::Hello)?;
        // The nonce is last: fields that later versions add to the hello stand before it.
        let fields = reader.left().checked_sub(NONCE_BYTES);
        let fields = fields.ok_or(HandshakeError::Wire(WireError::Short))?;
        let has_role = wire_version >= WHOLE_HELLO_SINCE && fields > 0;
        let is_operator = has_role && reader.peek() == Some(1) && hello.from.is_none();
        let after_role = reader.take(1).and_then(|_| reader.take(size_of::<u64>()));
        let has_clock = wire_version >= CLOCK_SINCE && fields > size_of::<u64>();
        let clock_ms = after_role.ok().filter(|_| has_clock);
        let clock_ms = clock_ms.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let bytes = greeting.to_vec();
        self.received.drain(..LENGTH_BYTES + length);
        let theirs = Greeting { hello, wire_version, is_operator, clock_ms, bytes };
        if self.is_dialer {
            let said = self.transcript(&theirs, true);
            let key = self.key(&theirs).ok_or(HandshakeError::Token)?;
            out.extend_from_slice(hmac::sign(key, &said).as_ref());
        }
        self.theirs = Some(theirs);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::ids::NodeId;
    use amalgam_cluster::wire::{WIRE_SINCE, WIRE_VERSION};

    use super::*;

    fn peer(number: u16) -> Peer {
        Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
    }

    /// What either side of a connection makes of the other.
    fn meet(one: Identity, other: Identity) -> [Result<Option<Peer>, HandshakeError>; 2] {
        let (mut to_other, mut to_one) = (Vec::new(), Vec::new());
        let mut one = Handshake::start(one, true, &mut to_other).expect("it starts");
        let mut other = Handshake::start(other, false, &mut to_one).expect("it starts");
        let mut results = [Ok(None), Ok(None)];
        for _ in 0..3 {
            let (mut from_one, mut from_other) = (Vec::new(), Vec::new());
            // Byte by byte: nothing depends on where packets end.
            let sides =
                [(&mut one, &to_one, &mut from_one), (&mut other, &to_other, &mut from_other)];
            for (result, (side, bytes, out)) in results.iter_mut().zip(sides) {
                for byte in bytes.chunks(1) {
                    match side.feed(byte, out) {
                        Ok(Some((hello, _))) => *result = Ok(hello.from),
                        Ok(None) => {}
                        Err(error) => *result = Err(error),
                    }
                }
            }
            (to_one, to_other) = (from_other, from_one);
        }
        results
    }

    #[test]
    fn who_belongs_together_meets() {
        let of = |node| Identity::new(5, Some(peer(node)), &Credentials::from("secret"));
        assert_eq!(meet(of(1), of(2)), [Ok(Some(peer(2))), Ok(Some(peer(1)))]);
        let client = Identity::new(0, None, &Credentials::from("secret"));
        assert_eq!(meet(client, of(2)), [Ok(Some(peer(2))), Ok(None)]);
    }

    #[test]
    fn strangers_are_told_apart() {
        let of =
            |cluster, token: &str| Identity::new(cluster, Some(peer(1)), &Credentials::from(token));
        let token = || Err(HandshakeError::Token);
        assert_eq!(meet(of(5, "secret"), of(5, "other")), [token(), token()]);
        let cluster = |number| Err(HandshakeError::Hello(HelloError::Cluster(number)));
        assert_eq!(meet(of(5, "secret"), of(6, "secret")), [cluster(6), cluster(5)]);
        let mut out = Vec::new();
        let mut side = Handshake::start(of(5, ""), false, &mut out).expect("it starts");
        let foreign = Err(HandshakeError::Hello(HelloError::Foreign));
        assert_eq!(side.feed(b"get key\r\n", &mut out), foreign);
        for first in [b"\x16\x03\x01\x02", b"\x15\x03\x03\x00"] {
            let mut side = Handshake::start(of(5, ""), true, &mut out).expect("it starts");
            assert_eq!(side.feed(first, &mut out), Err(HandshakeError::Secured));
        }
        // Of before `since`, and of a release that has dropped what is spoken here.
        let mut before = Vec::new();
        speaking(WIRE_SINCE - 1, 0).encode(&mut before);
        before.truncate(before.len() - 2);
        let later = WIRE_VERSION + 1;
        let after = encoded(&speaking(later, later));
        for (hello, version) in [(before, WIRE_SINCE - 1), (after, later)] {
            let mut side = Handshake::start(of(5, ""), true, &mut out).expect("it starts");
            let error = side.feed(&greeting(&hello, [0xff; 16]), &mut out).expect_err("it differs");
            assert_eq!(error, HandshakeError::Hello(HelloError::Version(version)));
            assert!(error.is_refusal(), "a node that joined all the same would be heard by nobody");
        }
        assert!(
            !HandshakeError::Hello(HelloError::Foreign).is_refusal(),
            "no node is there at all"
        );
    }

    fn speaking(version: u16, since: u16) -> Hello {
        let mut hello = Hello::new(5, Some(peer(2)));
        (hello.version, hello.since) = (version, since);
        hello
    }

    fn encoded(hello: &Hello) -> Vec<u8> {
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        bytes
    }

    /// What a side begins with.
    fn greeting(hello: &[u8], nonce: [u8; NONCE_BYTES]) -> Vec<u8> {
        let length = (hello.len() + NONCE_BYTES) as u16;
        [&length.to_le_bytes()[..], hello, &nonce].concat()
    }

    #[test]
    fn a_later_version_s_hello_may_be_longer() {
        let own = Identity::new(5, Some(peer(1)), &Credentials::from("secret"));
        let later = speaking(WIRE_VERSION + 1, WIRE_VERSION);
        let hello = [encoded(&later), b"more fields".to_vec()].concat();
        let nonce = [7; NONCE_BYTES];
        let mut side = Handshake::start(own.clone(), true, &mut Vec::new()).expect("it starts");
        let mut proof = Vec::new();
        assert_eq!(side.feed(&greeting(&hello, nonce), &mut proof), Ok(None));
        let said = side.transcript(side.theirs.as_ref().expect("it was read"), true);
        assert_eq!(hmac::verify(&own.key, &said, &proof), Ok(()));
        // One that ends within what is known is none.
        let mut side = Handshake::start(own, true, &mut Vec::new()).expect("it starts");
        let known = encoded(&later);
        let short = greeting(&known[..known.len() - 1], [0; NONCE_BYTES]);
        let error = side.feed(&short, &mut proof).expect_err("the nonce is too short");
        assert_eq!(error, HandshakeError::Wire(WireError::Short));
    }

    /// A dialer without the token could otherwise try guesses on the answer, at leisure.
    #[test]
    fn the_acceptor_proves_nothing_before_the_dialer_did() {
        let own = Identity::new(5, Some(peer(1)), &Credentials::from("secret"));
        for version in WIRE_SINCE..=WIRE_VERSION {
            let hello = speaking(version, WIRE_SINCE);
            let mut greeted = Vec::new();
            let mut side = Handshake::start(own.clone(), false, &mut greeted).expect("it starts");
            let mut out = Vec::new();
            assert_eq!(side.feed(&greeting(&encoded(&hello), [7; 16]), &mut out), Ok(None));
            assert_eq!(out, [0_u8; 0], "version {version}");
            assert_eq!(side.feed(&[1; PROOF_BYTES], &mut out), Err(HandshakeError::Token));
            assert_eq!(out, REFUSAL, "and nothing to try guesses on");
        }
    }

    #[test]
    fn releases_before_this_one_are_understood_on_both_sides() {
        let own = Identity::new(5, Some(peer(1)), &Credentials::from("secret"));
        let (their_nonce, hello) = ([7; 16], encoded(&speaking(6, 4)));
        let sign = |side: u8, challenge: &[u8], nonce: &[u8]| {
            hmac::sign(&own.key, &[&[side], challenge, nonce].concat()).as_ref().to_vec()
        };
        for is_dialer in [false, true] {
            let mut out = Vec::new();
            let mut side = Handshake::start(own.clone(), is_dialer, &mut out).expect("it starts");
            let own_nonce = nonce(&out).to_vec();
            // Such a side proves as soon as it has a hello, whoever dialed.
            let theirs = sign(u8::from(!is_dialer), &own_nonce, &their_nonce);
            let said = [greeting(&hello, their_nonce), theirs].concat();
            let mut proof = Vec::new();
            let known = side.feed(&said, &mut proof).expect("it is understood");
            assert_eq!(known.map(|(hello, _)| hello.from), Some(Some(peer(2))));
            assert_eq!(proof, sign(u8::from(is_dialer), &their_nonce, &own_nonce));
        }
    }

    #[test]
    fn a_hello_that_was_changed_on_the_way_is_noticed() {
        let of = |node| Identity::new(5, Some(peer(node)), &Credentials::from("secret"));
        let (mut to_other, mut to_one) = (Vec::new(), Vec::new());
        let mut one = Handshake::start(of(1), true, &mut to_other).expect("it starts");
        let mut other = Handshake::start(of(2), false, &mut to_one).expect("it starts");
        let mut proof = Vec::new();
        assert_eq!(one.feed(&to_one, &mut proof), Ok(None));
        // The incarnation of the sender, which is checked by nothing else here.
        let at = to_other.len() - NONCE_BYTES - 1 - size_of::<u16>() - size_of::<u32>();
        to_other[at] ^= 2;
        assert_eq!(other.feed(&to_other, &mut Vec::new()), Ok(None), "it is a hello");
        assert_eq!(other.feed(&proof, &mut Vec::new()), Err(HandshakeError::Token));
    }

    #[test]
    fn operators_prove_a_token_of_their_own() {
        let with = |token: &str, operator: &str| Credentials {
            operator_token: operator.to_owned(),
            ..Credentials::from(token)
        };
        let node = |operator| Identity::new(5, Some(peer(1)), &with("secret", operator));
        let client = |token, operator| Identity::new(0, None, &with(token, operator));
        let is_met = |client, node| matches!(meet(client, node), [Ok(Some(_)), Ok(None)]);
        assert!(is_met(client("", "operates"), node("operates")), "the join token is not needed");
        assert!(is_met(client("secret", ""), node("operates")));
        let token = || Err(HandshakeError::Token);
        for (operator, of_node) in [("secret", "operates"), ("operates", ""), ("secret", "")] {
            assert_eq!(meet(client("secret", operator), node(of_node)), [token(), token()]);
        }
        // Nodes of one cluster need not all have it.
        let other = Identity::new(5, Some(peer(2)), &with("secret", ""));
        assert_eq!(meet(node("operates"), other), [Ok(Some(peer(2))), Ok(Some(peer(1)))]);
    }

    #[test]
    fn a_proof_is_worth_nothing_in_another_session() {
        let of = |node| Identity::new(5, Some(peer(node)), &Credentials::from("secret"));
        let results = [[7, 7], [7, 8]].map(|bindings| {
            let (mut to_other, mut to_one) = (Vec::new(), Vec::new());
            let mut one = Handshake::start(of(1), true, &mut to_other).expect("it starts");
            let mut other = Handshake::start(of(2), false, &mut to_one).expect("it starts");
            one.bind(&[bindings[0]; 32]);
            other.bind(&[bindings[1]; 32]);
            let (mut proof, mut rest) = (Vec::new(), Vec::new());
            assert_eq!(other.feed(&to_other, &mut rest), Ok(None));
            assert_eq!(one.feed(&to_one, &mut proof), Ok(None));
            other.feed(&proof, &mut Vec::new()).map(|known| known.is_some())
        });
        assert_eq!(results, [Ok(true), Err(HandshakeError::Token)]);
    }
}
