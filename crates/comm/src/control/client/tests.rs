use super::*;
use crate::control::{Deadlines, Identity};
use std::net::TcpListener;

/// What the rank says next, heartbeats left out.
fn said(stream: &mut TcpStream) -> FromRank {
    loop {
        match message::read(stream, MAX_PAYLOAD).unwrap().0 {
            FromRank::Beat(_) => {}
            message => return message,
        }
    }
}

#[test]
fn an_answer_that_crosses_the_complaint_is_taken() {
    let listener = TcpListener::bind("localhost:0").unwrap();
    let address = vec![("localhost".to_owned(), listener.local_addr().unwrap().port())];
    let (identity, deadlines) = (Identity::default(), Deadlines::default());
    let job = Job { cookie: "cookie".into(), size: 1, identity, deadlines };
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        assert!(matches!(said(&mut stream), FromRank::Hello(_)));
        message::write(&mut stream, &ToRank::Welcome { hosts: vec!["here".into()] }, &[]).unwrap();
        assert_eq!(said(&mut stream), FromRank::Give { number: 0, to_all: true });
        assert!(matches!(said(&mut stream), FromRank::Unanswered { number: 0, .. }));
        message::write(&mut stream, &ToRank::Gathered { number: 0, lengths: vec![2] }, &[7, 8]).unwrap();
        assert_eq!(said(&mut stream), FromRank::Leave);
    });
    let control = Control::join(&job, 0, &address, |_| ()).unwrap();
    assert_eq!(control.all_gather(&[7, 8], Some(Duration::from_millis(10))), Ok(vec![vec![7, 8]]));
    control.leave();
    server.join().unwrap();
}
