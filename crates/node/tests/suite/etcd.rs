//! Membership in an etcd that is reached by https and authenticates its users.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;
use amalgam_node::{Etcd, EtcdConfiguration, EtcdUser, Membership, MembershipError};

use crate::process::{EtcdProcess, free_port};

/// An etcd that listens for http and https.
struct SecuredEtcd {
    process: EtcdProcess,
    /// The port for https.
    secured: u16,
}

fn certificate(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/certificates");
    folder.join(format!("{name}.pem"))
}

impl SecuredEtcd {
    /// None on machines without etcd.
    fn start() -> Option<Self> {
        let secured = free_port();
        let process = EtcdProcess::start_with(Some((secured, &certificate("server"))))?;
        Some(Self { process, secured })
    }

    /// Sends a request by http; the whole answer.
    fn post(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.process.address()).ok()?;
        let length = body.len();
        let request = format!(
            "POST /v3/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\
             \r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn open(&self, user: Option<(&str, &str)>) -> Etcd {
        let user = user.map(|(name, password)| EtcdUser {
            name: name.to_owned(),
            password: password.to_owned(),
        });
        let configuration = EtcdConfiguration {
            endpoints: vec![format!("https://localhost:{}", self.secured)],
            authorities: Some(certificate("authority")),
            user,
            ..EtcdConfiguration::default()
        };
        Etcd::open(&configuration).expect("certificates")
    }
}

#[test]
fn a_user_with_a_password_joins_over_https() {
    let Some(etcd) = SecuredEtcd::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    for (path, body) in [
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/enable", "{}"),
    ] {
        let answer = etcd.post(path, body).expect("it answers");
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    }
    let refused = |user| match etcd.open(user).snapshot() {
        Err(MembershipError::Unreachable(why)) => why,
        other => panic!("{other:?}"),
    };
    let error = refused(None);
    assert!(error.contains("user"), "{error}");
    let error = refused(Some(("root", "guessed")));
    assert!(error.contains("--etcd-user") && !error.contains("guessed"), "{error}");
    let membership = etcd.open(Some(("root", "secret")));
    assert_eq!(membership.snapshot().expect("there is no cluster yet").members().count(), 0);
    let joined = membership.join("one", "10.0.0.1:7911", "r1").expect("it joins");
    membership.keep_alive(joined.peer).expect("its lease is renewed");
    assert_eq!(membership.flush(), Ok(1));
    let other = etcd.open(Some(("root", "secret")));
    let snapshot = other.snapshot().expect("it answers");
    assert_eq!(snapshot.members().collect::<Vec<_>>(), [(joined.peer, "10.0.0.1:7911")]);
    assert_eq!(snapshot.flushes, 1);
    drop(membership);
    // Nobody renews its lease, so it is removed.
    let begin = Instant::now();
    while other.snapshot().expect("it answers").members().count() > 0 {
        assert!(begin.elapsed().as_secs() < 60, "its lease does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Access of one node to an etcd, and the node.
fn join(endpoint: &str, name: &str) -> (Etcd, Peer) {
    let configuration = EtcdConfiguration {
        endpoints: vec![endpoint.to_owned()],
        lease_seconds: 4,
        ..EtcdConfiguration::default()
    };
    let membership = Etcd::open(&configuration).expect("an endpoint");
    let joined = membership.join(name, "10.0.0.1:7911", "").expect("it joins");
    (membership, joined.peer)
}

#[test]
fn a_member_that_a_majority_votes_out_keeps_its_place_until_its_lease_has_ended() {
    let Some(process) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let members = ["a", "b", "c", "d", "e"].map(|name| join(&process.endpoint, name));
    let [(a, first), (b, second), (_, third), (d, cut), (_, next)] = &members;
    let renew_all = |but: Peer| {
        for (membership, peer) in members.iter().filter(|(_, peer)| *peer != but) {
            membership.keep_alive(*peer).expect("its lease is renewed");
        }
    };
    let has = |peer: Peer| b.snapshot().expect("it answers").view.has(peer);
    let vote = |membership: &Etcd, voter: Peer, member: Peer| {
        membership.propose(&Proposal::VoteOut { voter, member })
    };
    let gone = Err(MembershipError::Refused(CoordinatorError::NoMember));
    assert_eq!(vote(a, Peer { incarnation: 2, ..*first }, *cut), gone, "it is no member");
    for _ in 0..3 {
        vote(a, *first, *cut).expect("it is counted once");
        vote(d, *cut, *third).expect("it does not watch that one");
    }
    assert!(has(*cut));
    assert_eq!(d.keep_alive(*cut), Ok(()), "one of three is no majority");
    vote(b, *second, *cut).expect("it is counted");
    // The first node that reads the mark ends the lease, and the member stays.
    assert!(has(*cut));
    assert_eq!(d.keep_alive(*cut), gone);
    let alive = MembershipError::Refused(CoordinatorError::Alive);
    assert_eq!(a.join("d", "10.0.0.1:7911", ""), Err(alive), "it may still answer");
    let begin = Instant::now();
    while has(*cut) {
        assert!(begin.elapsed().as_secs() < 60, "its lease does not end");
        renew_all(*cut);
        std::thread::sleep(Duration::from_millis(100));
    }
    // Another member has to wait.
    vote(a, *first, *next).expect("it is counted");
    vote(b, *second, *next).expect("it is counted");
    assert!(has(*next));
    renew_all(*cut);
    assert_eq!(a.join("d", "10.0.0.1:7911", "").map(|joined| joined.peer.incarnation), Ok(2));
}

#[test]
fn a_member_that_was_voted_out_and_has_stopped_frees_its_place_and_name() {
    let Some(process) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let members = ["a", "b", "c"].map(|name| join(&process.endpoint, name));
    let [(a, first), (b, second), (c, third)] = &members;
    let gone = Err(MembershipError::Refused(CoordinatorError::NoMember));
    // A vote counts for five seconds, in which two may not arrive on a busy machine.
    let begin = Instant::now();
    while c.keep_alive(*third) != gone {
        assert!(begin.elapsed().as_secs() < 60, "it is not voted out");
        for (membership, voter) in [(a, first), (b, second)] {
            membership.keep_alive(*voter).expect("its lease is renewed");
            let vote = Proposal::VoteOut { voter: *voter, member: *third };
            membership.propose(&vote).expect("it is counted");
        }
        // The first node that reads the mark ends the lease.
        a.snapshot().expect("it answers");
    }
    c.leave(*third).expect("it has stopped");
    assert!(!a.snapshot().expect("it answers").view.has(*third));
    assert_eq!(c.join("c", "10.0.0.1:7911", "").map(|joined| joined.peer.incarnation), Ok(2));
}

#[test]
fn a_member_whose_lease_has_ended_goes_on_unless_it_was_removed() {
    let Some(process) = EtcdProcess::start() else {
        eprintln!("skipped: there is no etcd (Debian: etcd-server)");
        return;
    };
    let members = ["a", "b"].map(|name| join(&process.endpoint, name));
    let [(a, first), (b, second)] = &members;
    // The lease ends at etcd, as it does while that stands still.
    let sleep_until_over = || {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(6) {
            b.keep_alive(*second).expect("its lease is renewed");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    sleep_until_over();
    assert_eq!(a.keep_alive(*first), Ok(()), "nobody has looked");
    assert!(b.snapshot().expect("it answers").view.has(*first), "it has a lease again");
    assert_eq!(a.keep_alive(*first), Ok(()), "which is renewed");
    // A node that has just heard etcd again gives others time; later it removes them.
    sleep_until_over();
    assert!(b.snapshot().expect("it answers").view.has(*first), "after a break");
    sleep_until_over();
    b.snapshot().expect("it answers");
    let begin = Instant::now();
    while b.snapshot().expect("it answers").view.has(*first) {
        assert!(begin.elapsed().as_secs() < 60, "it is not removed");
        b.keep_alive(*second).expect("its lease is renewed");
        std::thread::sleep(Duration::from_millis(100));
    }
    let gone = Err(MembershipError::Refused(CoordinatorError::NoMember));
    assert_eq!(a.keep_alive(*first), gone, "others own what it owned");
}
