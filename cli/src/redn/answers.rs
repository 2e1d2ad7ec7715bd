//! A worker's answers to gets by SEND and RECV: one thread with a NIC of its own, which sleeps while nobody
//! asks. Clients set up on the connections on which calls come, by the line that a hull takes too.

use super::desk::Desk;
use crate::error::Error;
use adverb_io::Settings;
use adverb_io::program::Programs;
use adverb_rdma::{Endpoint, Rdma};
use adverb_redn::service::layout::Layout;
use adverb_redn::service::rpc::{Limits, Server};
use adverb_redn::service::setup::{Line, Offer, Told};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::task::Poll;

/// Clients at once, and gets that each may have under way: as many as a hull serves at most.
const LIMITS: Limits = Limits { clients: 128, slots: 64 };

/// What a connection's thread asks of the one that answers.
pub enum Question {
    /// A client wants to be served.
    Connect(Box<Offer>, Sender<Result<(u32, Endpoint), String>>),
    /// It has gone.
    Leave(u32),
}

/// The way from connections to the thread that answers.
pub struct Answers {
    desk: Arc<Desk<Question>>,
    layout: Layout,
    calls: String,
}

impl Answers {
    /// For clients that are told this table, and where calls go.
    pub fn new(layout: Layout, calls: String) -> Answers {
        Answers { desk: Desk::new(), layout, calls }
    }

    /// Serves a client, if that is what a line asks: its number, or 0, and what is answered.
    pub fn connect(&self, line: &[u8]) -> (u32, String) {
        let offer = match Line::parse(&String::from_utf8_lossy(line)) {
            Ok(Line::Connect(offer)) => offer,
            Ok(_) => return (0, "refused connect is expected\n".to_owned()),
            Err(wrong) => return (0, format!("refused {wrong}\n")),
        };
        let (sender, receiver) = mpsc::channel();
        self.desk.ask(Question::Connect(offer, sender));
        match receiver.recv() {
            Ok(Ok((client, endpoint))) => {
                let (layout, calls) = (self.layout, self.calls.clone());
                (client, format!("{}\n", Told { client, endpoint, layout, calls, rkeys: None }))
            }
            Ok(Err(why)) => (0, format!("refused {why}\n")),
            Err(_) => (0, "refused the worker ends\n".to_owned()),
        }
    }

    /// A client has gone.
    pub fn leave(&self, client: u32) {
        self.desk.ask(Question::Leave(client));
    }

    /// Opens a NIC, tells whether that went well, and answers for ever by what this finds for a key.
    pub fn run(
        &self,
        settings: &Settings,
        opened: &Sender<Result<(), Error>>,
        find: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let device = |error: &dyn std::fmt::Display| Error::Device(format!("--two-sided: {error}"));
        let programs = match Programs::open(settings) {
            Ok(programs) => programs,
            Err(error) => {
                // Who waits for it ends the worker.
                let _ = opened.send(Err(device(&error)));
                return Ok(());
            }
        };
        let _ = opened.send(Ok(()));
        let rdma = Rdma::new(programs.clone());
        programs.block_on(async {
            let mut server = Server::new(&rdma, LIMITS).await.map_err(|error| device(&error))?;
            loop {
                while let Some(question) = self.desk.try_next() {
                    take(&mut server, question).await;
                }
                if server.answer(&find).await.map_err(|error| device(&error))? == 0 {
                    let question = self.next(&server).await.map_err(|error| device(&error))?;
                    if let Some(question) = question {
                        take(&mut server, question).await;
                    }
                }
            }
        })
    }

    /// Waits for a question, or for a message.
    async fn next(&self, server: &Server) -> Result<Option<Question>, adverb_rdma::Error> {
        let (mut asked, mut come) = (pin!(self.desk.next()), pin!(server.wait()));
        poll_fn(|context| match asked.as_mut().poll(context) {
            Poll::Ready(question) => Poll::Ready(Ok(Some(question))),
            Poll::Pending => come.as_mut().poll(context).map(|come| come.map(|()| None)),
        })
        .await
    }
}

async fn take(server: &mut Server, question: Question) {
    match question {
        Question::Connect(offer, answer) => {
            let told = server.connect(&offer).await.map_err(|refused| refused.to_string());
            let client = told.as_ref().map_or(0, |(client, _)| *client);
            if answer.send(told).is_err() {
                server.leave(client);
            }
        }
        Question::Leave(client) => server.leave(client),
    }
}
