//! Values for which there is no room in the buffers yet: their clients wait, and are not refused.

use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use amalgam_server::Settings;

use crate::support::{Client, Running, settings, wait_until};

/// The limit of buffers is the least there is, 8 MiB; values have room in three quarters of it.
fn start(threads: usize) -> Running {
    Running::start(Settings { memory_bytes: 16 << 20, ..settings(threads) })
}

/// Sends a part of a value in pieces, so that the server reads none of them with the head of the
/// request, and pieces of other clients in between.
fn send_pieces(client: &mut Client<TcpStream>, bytes: usize) {
    for piece in vec![b'v'; bytes].chunks(20_000) {
        std::thread::sleep(Duration::from_millis(1));
        client.send(piece);
    }
}

#[test]
fn values_that_do_not_fit_at_the_same_time_are_all_stored() {
    const CLIENTS: usize = 24;
    let server = start(2);
    let (server, barrier, refused) = (&server, &Barrier::new(CLIENTS), &AtomicUsize::new(0));
    let store = move |number: usize| {
        let mut client = server.connect();
        for round in 0..3 {
            let bytes = 400_000 + number * 16_000 + round;
            client.send(format!("set k{number} 0 0 {bytes}\r\n"));
            send_pieces(&mut client, 60_000);
            // Each value is under way before the rest of any is sent.
            barrier.wait();
            send_pieces(&mut client, bytes - 60_000);
            client.send("\r\n");
            // A failure here would leave the others at the barrier.
            if client.until("\r\n") != "STORED\r\n" {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|number| drop(scope.spawn(move || store(number))));
    });
    let mut other = server.connect();
    assert_eq!(refused.load(Ordering::Relaxed), 0);
    assert_eq!(other.stat("read_buf_oom"), "0");
    wait_until("all is given back", || other.stat("read_buf_bytes") == "0");
}

#[test]
fn clients_that_announce_values_and_send_little_delay_others_for_a_while() {
    let server = start(2);
    let mut silent: Vec<_> = (0..24).map(|_| server.connect()).collect();
    for client in &mut silent {
        client.send("set silent 0 0 900000\r\n");
        send_pieces(client, 40_000);
    }
    let mut other = server.connect();
    for number in 0..20 {
        let bytes = 20_000 + number;
        other.send(format!("set short 0 0 {bytes}\r\n"));
        send_pieces(&mut other, bytes);
        other.talk("\r\n", "STORED\r\n");
    }
    other.send("set long 0 0 500000\r\n");
    send_pieces(&mut other, 500_000);
    other.talk("\r\n", "STORED\r\n");
    drop(silent);
    wait_until("all is given back", || other.stat("read_buf_bytes") == "0");
}
