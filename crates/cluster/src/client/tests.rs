//! Tests of a client's retries and deadlines.

use super::*;
use crate::ids::NodeId;
use crate::overlay::{Located, Message, OverlaySettings};
use crate::ranges::{Placement, Range};

fn peer(number: u16) -> Peer {
    Peer { node: NodeId::new(number).expect("a node"), incarnation: 1 }
}

/// A locator whose only super peer is this one.
fn locator_of(peer: Peer) -> Locator {
    Locator::new(peer, OverlaySettings::default(), 1 << 16, vec![peer])
}

#[test]
fn an_operation_ends_however_long_each_try_takes() {
    let home = peer(0);
    let mut locator = locator_of(home);
    for step_ms in [20, 5_000] {
        let mut client = Client::new(ClientId(1), home);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let action = Action::Create(Vec::new());
        let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
        let mut now_ms = 0;
        while completions.is_empty() {
            assert!(now_ms <= PATIENCE_MS, "it goes on at {now_ms}");
            now_ms += step_ms;
            let (to, done) = (&mut asked, &mut completions);
            client.on_tick(&mut locator, now_ms, &mut commands, to, done);
        }
        assert_eq!(completions, [(number, Err(ChunkError::Unknown))], "it was asked");
        assert!(asked.len() > 5 && client.pending() == 0);
    }
}

/// Whoever is told that nothing was done may repeat the operation, so nobody is told that of
/// one that may have been executed.
#[test]
fn what_is_given_up_is_unknown_unless_every_try_was_refused() {
    let home = peer(0);
    let mut locator = locator_of(home);
    for (refused, expected) in
        [(1, ChunkError::Unknown), (2, ChunkError::Unavailable), (0, ChunkError::Unknown)]
    {
        let mut client = Client::new(ClientId(1), home);
        client.set_patience(RETRY_MS + 1);
        let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
        let action = Action::Create(Vec::new());
        let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
        assert_eq!(client.until_ms(number), Some(RETRY_MS + 1));
        client.on_tick(&mut locator, RETRY_MS, &mut commands, &mut asked, &mut completions);
        assert_eq!((asked.len(), completions.len()), (2, 0), "it was sent twice");
        for _ in 0..refused {
            let reply = vec![(number, Err(ChunkError::Retry))];
            let (to, done) = (&mut commands, &mut completions);
            client.on_reply(home, reply, &mut locator, RETRY_MS, to, done);
        }
        let late_ms = RETRY_MS + PAUSE_MS;
        client.on_tick(&mut locator, late_ms, &mut commands, &mut asked, &mut completions);
        assert_eq!(completions, [(number, Err(expected))], "{refused} refusals");
        assert_eq!(asked.len(), 2, "it was not sent again");
    }
    // One that was never sent was not executed, and a silent owner is not waited for.
    let mut client = Client::new(ClientId(1), home);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    for is_sent in [false, true] {
        let action = Action::Create(Vec::new());
        let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
        let (_, request) = asked.pop().expect("a request");
        if !is_sent {
            client.on_unsent(&request);
        }
        client.on_silent(home, &mut completions);
        let expected = if is_sent { ChunkError::Unknown } else { ChunkError::Unavailable };
        assert_eq!(completions.pop(), Some((number, Err(expected))));
    }
}

/// While one node cannot answer for what it has to take over, another may need a moment for a
/// range that moves.
#[test]
fn only_operations_of_a_node_that_waiting_does_not_help_end_early() {
    let [failing, sound] = [0, 1].map(peer);
    let mut locator = locator_of(sound);
    let mut client = Client::new(ClientId(1), sound);
    client.set_patience(1_000);
    // Creates at `home`, which refuses `refusals` times. Returns when it ended, and how.
    let mut create = |home, mut now_ms, refusals| {
        let (mut commands, mut asked, mut done) = (Vec::new(), Vec::new(), Vec::new());
        client.set_home(home);
        let action = Action::Create(Vec::new());
        let number = client.submit(action, &mut locator, now_ms, &mut commands, &mut asked);
        let mut refused = 0;
        while done.is_empty() {
            for (to, _) in std::mem::take(&mut asked) {
                let is_refused = refused < refusals;
                refused += u32::from(is_refused);
                let answer = if is_refused { Err(ChunkError::Busy) } else { Ok(Response::Ok) };
                let reply = vec![(number, answer)];
                client.on_reply(to, reply, &mut locator, now_ms, &mut commands, &mut done);
            }
            now_ms += 10;
            client.on_tick(&mut locator, now_ms, &mut commands, &mut asked, &mut done);
        }
        (now_ms, done.remove(0).1)
    };
    let (given_up, answered) = (Err(ChunkError::Unavailable), Ok(Response::Ok));
    assert_eq!(create(failing, 0, u32::MAX), (1_000, given_up.clone()));
    assert_eq!(create(failing, 1_000, u32::MAX), (1_030, given_up.clone()), "at the next try");
    assert_eq!(create(sound, 1_100, 10), (1_310, answered.clone()), "it refuses for a while");
    assert_eq!(create(failing, 1_400, 1), (1_430, answered), "waiting helped");
    assert_eq!(
        create(failing, 1_500, u32::MAX),
        (2_500, given_up.clone()),
        "so it may help others"
    );
    assert_eq!(create(failing, 3_500, u32::MAX), (4_500, given_up), "one tries it again");
}

/// One owner keeps an operation waiting, and others answer thousands: they need not keep all of
/// these replies.
#[test]
fn a_client_whose_operation_waits_goes_on_under_another_id() {
    let [slow, fast] = [0, 1].map(peer);
    let mut locator = locator_of(slow);
    let mut client = Client::new(ClientId(1), slow);
    client.set_patience(PATIENCE_MS - 1);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let create = |client: &mut Client, locator: &mut Locator, asked: &mut Vec<_>| {
        client.submit(Action::Create(Vec::new()), locator, 0, &mut Vec::new(), asked)
    };
    let waits = create(&mut client, &mut locator, &mut asked);
    client.set_home(fast);
    let (mut ids, mut numbers) = (BTreeSet::new(), BTreeSet::from([waits]));
    for _ in 0..5 * NUMBERS_MAX {
        asked.clear();
        let number = create(&mut client, &mut locator, &mut asked);
        assert!(numbers.insert(number), "numbers are unique");
        let (to, request) = asked.pop().expect("a request");
        assert!(to == fast && number - request.answered_below <= NUMBERS_MAX);
        if ids.insert(request.client) {
            let opens = &request.operations[0];
            assert!(matches!(opens.action, Action::Open { .. }) && opens.number < number);
            assert!(!numbers.contains(&opens.number), "it is of no operation");
        }
        let reply = vec![(number, Ok(Response::Ok))];
        client.on_reply(fast, reply, &mut locator, 0, &mut commands, &mut completions);
    }
    assert_eq!((ids.len(), client.identities.len()), (2, 2));
    let reply = vec![(waits, Ok(Response::Ok))];
    client.on_reply(slow, reply, &mut locator, 0, &mut commands, &mut completions);
    asked.clear();
    client.on_tick(&mut locator, 0, &mut commands, &mut asked, &mut completions);
    let closes = |(_, request): &OutgoingRequest| request.operations[0].action == Action::Close;
    assert!(asked.iter().all(closes) && asked.len() == 2, "one for each owner");
    assert_eq!((client.identities.len(), client.pending()), (1, 0));
    assert_eq!(completions.len() as u64, 5 * NUMBERS_MAX + 1);
}

/// A session is opened along with an operation, by a request that may be refused as a whole.
#[test]
fn a_refused_session_does_not_count_as_the_refusal_of_another_operation() {
    let [home, other] = [0, 1].map(peer);
    let mut locator = locator_of(home);
    let mut client = Client::new(ClientId(1), home);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let mut create = |client: &mut Client| {
        let action = Action::Create(Vec::new());
        client.submit(action, &mut locator, 0, &mut commands, &mut asked);
        let (_, request) = asked.pop().expect("a request");
        assert_eq!(request.operations.len(), 2, "one opens a session");
        request
    };
    create(&mut client);
    client.set_home(other);
    let refused = create(&mut client).operations.into_iter();
    let reply = refused.map(|operation| (operation.number, Err(ChunkError::Busy))).collect();
    client.on_reply(other, reply, &mut locator, 0, &mut commands, &mut completions);
    client.on_silent(home, &mut completions);
    assert_eq!(completions, [(1, Err(ChunkError::Unknown))], "it was sent and not refused");
}

/// The responsible super peer may have died, and another takes over.
#[test]
fn an_unanswered_lookup_is_retried_until_the_deadline() {
    let home = peer(0);
    let mut locator = locator_of(home);
    let mut client = Client::new(ClientId(1), home);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let action = Action::Get(ChunkId::from_bits(7).expect("an id"));
    let number = client.submit(action, &mut locator, 0, &mut commands, &mut asked);
    let (mut unanswered, mut now_ms) = (0, 0);
    while completions.is_empty() {
        assert!(now_ms < 2 * PATIENCE_MS, "{unanswered} lookups");
        now_ms += 20;
        let mut answers = Vec::new();
        locator.on_tick(now_ms, &mut commands, &mut answers);
        unanswered += answers.len();
        for answer in answers {
            let (to, done) = (&mut asked, &mut completions);
            client.on_located(&answer, &mut locator, now_ms, &mut commands, to, done);
        }
        let (to, done) = (&mut asked, &mut completions);
        client.on_tick(&mut locator, now_ms, &mut commands, to, done);
    }
    assert_eq!(completions, [(number, Err(ChunkError::Unavailable))]);
    assert!(now_ms >= PATIENCE_MS && unanswered > 2, "{unanswered} lookups, {now_ms} ms");
}

/// A node whose lease ended still answers, but another node owns its chunks.
#[test]
fn an_owner_without_a_lease_is_looked_up_again() {
    let [home, owner] = [0, 1].map(peer);
    let mut locator = locator_of(home);
    let mut client = Client::new(ClientId(1), home);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let id = ChunkId::from_bits(7).expect("an id");
    let number = client.submit(Action::Get(id), &mut locator, 0, &mut commands, &mut asked);
    let (mut lookups, mut now_ms) = (0, 0);
    while lookups < 3 {
        assert!(now_ms < 1_000, "{lookups} lookups in a second");
        for command in std::mem::take(&mut commands) {
            let OverlayCommand::Send(_, Message::LookUp { token, .. }) = command else {
                continue;
            };
            lookups += 1;
            let range =
                Range { ids: IdRange::single(id), placement: Placement::of_owner(owner.node) };
            let found = Some((range, owner.incarnation));
            let found = Message::Found { token, id, epoch: 1, found, is_certain: true };
            let mut answers = Vec::new();
            locator.on_message(&found, now_ms, &mut commands, &mut answers);
            let (to, done) = (&mut asked, &mut completions);
            client.on_located(&answers[0], &mut locator, now_ms, &mut commands, to, done);
        }
        for (to, _) in std::mem::take(&mut asked) {
            assert_eq!(to, owner);
            let reply = vec![(number, Err(ChunkError::Unavailable))];
            client.on_reply(to, reply, &mut locator, now_ms, &mut commands, &mut completions);
        }
        now_ms += 10;
        let (to, done) = (&mut asked, &mut completions);
        client.on_tick(&mut locator, now_ms, &mut commands, to, done);
    }
}

/// The replacement is looked up at once, and then at intervals.
#[test]
fn an_unreachable_owner_is_looked_up_again() {
    let [home, owner] = [0, 1].map(peer);
    let mut locator = locator_of(home);
    let mut client = Client::new(ClientId(1), home);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let id = ChunkId::from_bits(7).expect("an id");
    client.submit(Action::Get(id), &mut locator, 0, &mut commands, &mut asked);
    for now_ms in [0, 1, UNREACHABLE_MS + 1] {
        let lookups = commands.drain(..).filter_map(|command| match command {
            OverlayCommand::Send(_, Message::LookUp { token, .. }) => Some(token),
            _ => None,
        });
        let [token] = lookups.collect::<Vec<_>>()[..] else { panic!("one lookup") };
        let range = Range { ids: IdRange::single(id), placement: Placement::of_owner(owner.node) };
        let located = Located { range, owner, epoch: 1, is_certain: true };
        let answer = Answer::Located(token, located);
        let (to, done) = (&mut asked, &mut completions);
        client.on_located(&answer, &mut locator, now_ms, &mut commands, to, done);
        assert_eq!(asked.drain(..).map(|(to, _)| to).collect::<Vec<_>>(), [owner]);
        client.on_unreachable(home, &mut locator, now_ms, &mut commands, &mut completions);
        assert!(commands.is_empty(), "it was not asked");
        client.on_unreachable(owner, &mut locator, now_ms, &mut commands, &mut completions);
        let (to, done) = (&mut asked, &mut completions);
        client.on_tick(&mut locator, UNREACHABLE_MS + 1, &mut commands, to, done);
    }
    assert!(completions.is_empty() && client.pending() == 1);
}

/// A chunk created twice would leave one that nobody knows.
#[test]
fn a_create_goes_to_one_node() {
    let [old, new] = [0, 1].map(peer);
    let mut locator = locator_of(old);
    let mut client = Client::new(ClientId(1), old);
    let (mut commands, mut asked, mut completions) = (Vec::new(), Vec::new(), Vec::new());
    let mut create = |client: &mut Client, now_ms, asked: &mut Vec<OutgoingRequest>| {
        let action = Action::Create(Vec::new());
        client.submit(action, &mut locator, now_ms, &mut commands, asked)
    };
    let first = create(&mut client, 0, &mut asked);
    client.set_home(new);
    create(&mut client, 0, &mut asked);
    assert_eq!(asked.drain(..).map(|(to, _)| to).collect::<Vec<_>>(), [old, new]);
    client.on_tick(&mut locator, RETRY_MS, &mut commands, &mut asked, &mut completions);
    let again: BTreeSet<Peer> = asked.drain(..).map(|(to, _)| to).collect();
    assert_eq!(again, BTreeSet::from([old, new]), "each is asked again");
    client.on_members(|_| true, &mut completions);
    assert!(completions.is_empty() && client.pending() == 2);
    client.on_members(|peer| peer == new, &mut completions);
    assert_eq!(completions, [(first, Err(ChunkError::Unknown))], "nobody else can tell");
    assert_eq!(client.pending(), 1);
}
