//! The load of a trial: each key has a thread that writes it and one that reads it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chaos::checker::{Action, Event, Outcome};
use crate::chaos::clients::{Client, Protocol};

/// Number of keys.
pub const KEYS: usize = 200;
/// Pause of a thread after each operation.
const PAUSE: Duration = Duration::from_millis(60);
/// How long the reads at the end are repeated until each key is read.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a key.
pub fn key_name(key: usize) -> String {
    format!("chaos-{key}")
}

/// A client program over all members.
pub struct Load {
    /// What is spoken.
    pub protocol: Protocol,
    /// Where members listen for clients.
    pub members: Vec<SocketAddr>,
    /// When the trial began.
    pub begin: Instant,
}

impl Load {
    /// Runs all threads until `stops`; what they were told.
    pub fn run(&self, stops: &AtomicBool) -> Vec<Event> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2 * KEYS)
                .map(|thread| scope.spawn(move || self.thread(thread % KEYS, thread < KEYS, stops)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    fn thread(&self, key: usize, is_writer: bool, stops: &AtomicBool) -> Vec<Event> {
        let (mut events, mut number) = (Vec::new(), 0);
        // A reader begins at another member than the key's writer.
        let mut client = Client::new(self.protocol, &self.members, key + usize::from(!is_writer));
        while !stops.load(Ordering::Acquire) {
            number += 1;
            let action = if is_writer { Action::Write(number) } else { Action::Read };
            events.push(self.operation(&mut client, key, action));
            std::thread::sleep(PAUSE);
        }
        events
    }

    fn operation(&self, client: &mut Client, key: usize, action: Action) -> Event {
        let (called, name) = (self.begin.elapsed(), key_name(key));
        let outcome = match action {
            Action::Write(number) => client.write(&name, number),
            Action::Read | Action::FinalRead => client.read(&name),
        };
        let returned = self.begin.elapsed();
        Event { key, action, gateway: client.asked, called, returned, outcome }
    }

    /// Reads each key until it is answered.
    pub fn read_all(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut client = Client::new(self.protocol, &self.members, 0);
        let deadline = Instant::now() + PATIENCE;
        for key in 0..KEYS {
            loop {
                let event = self.operation(&mut client, key, Action::FinalRead);
                events.push(event);
                if event.outcome != Outcome::Failed || Instant::now() > deadline {
                    break;
                }
                client.move_to(client.gateway + 1);
                std::thread::sleep(PAUSE);
            }
        }
        events
    }
}
