//! Numbers that are handed out once: a word of the home's memory holds the next one, and clients take numbers
//! with fetch-and-add, without the home's help.
//!
//! The program knows nothing of the world that it runs in. `tests/swarm.rs` runs it in a thousand simulated
//! ones.

use adverb_rdma::{Access, Caps, Connect, Error, On, Qp, Rdma, Region, Remote};

/// What an oracle is told: the object of all notes.
pub const NUMBERS: u64 = 1;

/// How a client takes a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// With one atomic.
    Atomically,
    /// With a READ and a WRITE: wrong, as soon as two do so at once.
    Carelessly,
}

/// The home: lends its word to whoever asks, until the program is asked to end.
pub async fn serve(rdma: Rdma, name: &str) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let word = pd.region(8, access).await?;
    let listener = rdma.listen(name).await?;
    // A connection lasts as long as its queue pair is kept.
    let mut clients = Vec::new();
    while rdma.until(&[On::Stop, On::Asked(&listener)], None).await? != Some(0) {
        let Some(asked) = listener.try_accept().await? else { continue };
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &word.remote().to_bytes(), &Connect::default()).await?;
        clients.push((qp, line));
    }
    Ok(())
}

/// A client: takes so many numbers, one after another. When its connection fails it makes a new one; of the
/// number that it was about to take it cannot know whether it is taken, and lets it go.
pub async fn take(rdma: Rdma, name: &str, count: u32, how: How) -> Result<Vec<u64>, Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let landing = pd.region(8, Access::LOCAL_WRITE).await?;
    let (mut taken, mut tried) = (Vec::new(), 0);
    while tried < count {
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect(name, &[], &Connect::default(), None).await?;
        let word = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        while tried < count {
            tried += 1;
            match take_one(&rdma, &qp, &word, &landing, how).await {
                Ok(number) => taken.push(number),
                Err(Error::Failed { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(taken)
}

async fn take_one(rdma: &Rdma, qp: &Qp, word: &Remote, landing: &Region, how: How) -> Result<u64, Error> {
    // Noted when it begins and when it ends; dropped on the way, it stays open: perhaps it was done.
    let operation = rdma.operation(NUMBERS, "take", &[]);
    let number = match how {
        How::Atomically => qp.fetch_add((word, 0), 1, (landing, 0)).await?,
        How::Carelessly => {
            qp.read((landing, 0), 8, (word, 0)).await?;
            let number = landing.load(0).await?;
            landing.store(0, number + 1).await?;
            qp.write((landing, 0), 8, (word, 0)).await?;
            number
        }
    };
    operation.end(&[number]);
    Ok(number)
}
