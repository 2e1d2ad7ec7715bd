//! Chains of NOPs in RedN's three orders (section 3.2, figure 8), on queue pairs that are connected to
//! themselves. A chain's time is from the doorbell until its last NOP's completion can be found.

use super::wqe::{Block, enable, nop, wait};
use super::{Order, Shared};
use adverb_rdma::{Caps, Connect, Cq, Error, On, Pd, Qp, QpType, Rdma, SendOrder, Status};

/// Chains one after another, each on queues of its own.
pub async fn chains(rdma: Rdma, log: Shared, order: Order, counts: Vec<u32>) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    for count in counts {
        let cq = rdma.create_cq(256).await?;
        let head = queue(&pd, &cq, SendOrder::Cross).await?;
        let managed;
        let chain = match order {
            Order::Queue => vec![nop(); count as usize],
            Order::Completion => (0..count).flat_map(|n| [nop(), wait(cq.number(), n)]).collect(),
            Order::Doorbell => {
                managed = queue(&pd, &cq, SendOrder::Managed).await?;
                fill(&managed, &vec![nop(); count as usize]).await?;
                let number = managed.number().get();
                // Each NOP is enabled when the one before has completed.
                let next = |n| [wait(cq.number(), n - 1), enable(number, n + 1)];
                [enable(number, 1)].into_iter().chain((1..count).flat_map(next)).collect()
            }
        };
        fill(&head, &chain).await?;
        let begun = rdma.now().await?;
        head.doorbell(chain.len() as u32).await?;
        let mut done = 0;
        while done < count {
            rdma.until(&[On::Cq(&cq)], None).await?;
            for completion in cq.poll(16).await? {
                if completion.status != Status::Success {
                    return Err(Error::of(&completion));
                }
                done += 1;
            }
        }
        let took = rdma.now().await?.as_ps() - begun.as_ps();
        let mut log = log.borrow_mut();
        log.samples.push(took);
        log.counts.push(count);
    }
    Ok(())
}

/// A queue pair whose sends come back to it.
pub async fn queue(pd: &Pd, cq: &Cq, order: SendOrder) -> Result<Qp, Error> {
    let caps = Caps { max_send_wr: 128, ..Caps::default() };
    let qp = pd.create_ordered_qp(QpType::Rc, (cq, cq), None, caps, order).await?;
    qp.connect_to_itself(&Connect { timeout: 0, ..Connect::default() }).await?;
    Ok(qp)
}

/// Writes WQEs into a send queue, from its first block on.
pub async fn fill(qp: &Qp, chain: &[Block]) -> Result<(), Error> {
    qp.send_queue().await?.write(0, chain.as_flattened()).await
}
