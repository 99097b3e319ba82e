//! A connection that several clients share, as the threads of an application's server do.
//!
//! A client that finds the connection free sends the requests of all waiting clients, and hands out
//! the answers. Meanwhile, requests of other clients are collected for the next round. So requests
//! of many clients travel together, and no client waits longer than for the present round.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use anyhow::{Context, anyhow};

use super::stores::{Request, Store, Values};

/// The requests of clients and the answers to them, by number.
struct State {
    /// The connection; None while a client uses it.
    store: Option<Box<dyn Store>>,
    waiting: Vec<(u64, Request)>,
    answered: BTreeMap<u64, Values>,
    next: u64,
    /// Why the store failed; None if it did not. After a failure, all requests fail.
    failure: Option<String>,
}

struct Line {
    state: Mutex<State>,
    /// Notified when a client returns the connection.
    returned: Condvar,
}

/// One client's part of a connection.
#[derive(Clone)]
pub struct Shared(Arc<Line>);

impl Shared {
    /// A connection that all clones share.
    pub fn new(store: Box<dyn Store>) -> Self {
        let (waiting, answered) = (Vec::new(), BTreeMap::new());
        let state = State { store: Some(store), waiting, answered, next: 0, failure: None };
        Self(Arc::new(Line { state: Mutex::new(state), returned: Condvar::new() }))
    }
}

impl Store for Shared {
    fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
        let panicked = || anyhow!("another client panicked");
        let mut state = self.0.state.lock().map_err(|_| panicked())?;
        let first = state.next;
        let numbers = first..first + requests.len() as u64;
        state.next = numbers.end;
        state.waiting.extend(numbers.clone().zip(requests));
        loop {
            if let Some(why) = &state.failure {
                return Err(anyhow!("{why}"));
            }
            // All requests of one call travel together.
            if numbers.is_empty() || state.answered.contains_key(&first) {
                let take = |number| state.answered.remove(&number).context("as many answers");
                return numbers.map(take).collect();
            }
            let Some(mut store) = state.store.take() else {
                state = self.0.returned.wait(state).map_err(|_| panicked())?;
                continue;
            };
            let (asked, requests): (Vec<u64>, Vec<Request>) =
                std::mem::take(&mut state.waiting).into_iter().unzip();
            drop(state);
            let result = store.execute(requests);
            state = self.0.state.lock().map_err(|_| panicked())?;
            state.store = Some(store);
            match result {
                Ok(values) => state.answered.extend(asked.into_iter().zip(values)),
                Err(error) => state.failure = Some(format!("{error:#}")),
            }
            self.0.returned.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers each number with itself, slowly, and counts calls; one number it does not know.
    struct Echo(Arc<AtomicUsize>);

    impl Store for Echo {
        fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(1));
            let answer = |request: Request| match request {
                Request::Read(numbers) if numbers.contains(&u32::MAX) => Err(anyhow!("unknown")),
                Request::Read(numbers) => {
                    Ok(numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect())
                }
                Request::Write(_) => Ok(Vec::new()),
            };
            requests.into_iter().map(answer).collect()
        }
    }

    #[test]
    fn each_gets_what_it_asked_for_and_requests_travel_together() {
        let calls = Arc::new(AtomicUsize::new(0));
        let shared = Shared::new(Box::new(Echo(Arc::clone(&calls))));
        std::thread::scope(|scope| {
            for client in 0..8_u32 {
                let mut own = shared.clone();
                scope.spawn(move || {
                    for round in 0..25 {
                        let numbers = [client, 1_000 + round];
                        let values = own.read(&numbers).expect("an answer");
                        let expected = numbers.map(|number| number.to_le_bytes().to_vec());
                        assert_eq!(values, expected);
                        own.write(vec![(client, Vec::new())]).expect("an answer");
                    }
                });
            }
        });
        let calls = calls.load(Ordering::Relaxed);
        assert!((50..400).contains(&calls), "{calls} calls for 400 requests");
    }

    #[test]
    fn a_store_that_failed_fails_for_all() {
        let shared = Shared::new(Box::new(Echo(Arc::default())));
        let [mut one, mut other] = [shared.clone(), shared];
        assert_eq!(one.read(&[7]).expect("an answer"), [7_u32.to_le_bytes()]);
        assert!(one.read(&[u32::MAX]).is_err());
        assert!(other.read(&[7]).is_err_and(|error| error.to_string().contains("unknown")));
    }
}
