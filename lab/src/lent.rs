//! A server whose memory peers use one-sidedly, which programs of several experiments begin with.

use adverb_rdma::{Access, Caps, Connect, Error, On, Pd, Rdma, Region};

/// What peers may do with lent memory.
pub(crate) fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Each of so many peers that ask under this name gets a queue pair and is told of the memory, until the
/// program is asked to end.
pub(crate) async fn lend(
    rdma: Rdma,
    name: &str,
    pairs: u32,
    how: &Connect,
    memory: impl AsyncFnOnce(&Pd) -> Result<Region, Error>,
) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let memory = memory(&pd).await?;
    let listener = rdma.listen(name).await?;
    let mut peers = Vec::new();
    for _ in 0..pairs {
        let asked = listener.accept().await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &memory.remote().to_bytes(), how).await?;
        peers.push((qp, line));
    }
    rdma.until(&[On::Stop], None).await.map(|_| ())
}
