//! Random faults together, chosen by a seed: replicas die, drain and come back, commits have
//! unknown outcomes, peers do not answer. The test checks the answers that clients got: an
//! acknowledged write exists (F5), a refused one never appears (F6), versions grow (W1).

use super::*;
use polyplane_storage::CommitFault;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(super) struct ViewMember {
    done: Vec<(String, Version)>,
    denied: Vec<String>,
}

/// Writes objects whose names are used once, until it is stopped.
pub(super) async fn client(town: Arc<Town>, birth: Birth, stop: Arc<AtomicBool>) -> ViewMember {
    let mut told = ViewMember::default();
    for n in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let name = format!("w-{n}");
        let plane = town.find(&birth).await;
        let write = Write {
            operations: vec![put(&name, "1")],
            claims: Vec::new(),
            deadline: Some(Instant::now() + PATIENCE),
        };
        match plane.submit(write).await {
            Ok(committed) => told.done.push((name, committed.version)),
            Err(SubmitError::Lost | SubmitError::Unavailable(_) | SubmitError::Withdrawn) => {
                told.denied.push(name);
            }
            // The outcome is unknown, so nothing is claimed.
            Err(SubmitError::Deadline) => {}
            Err(error) => panic!("no answer to a write: {error:?}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
    told
}

/// Causes one random fault.
async fn befall(town: &Arc<Town>, dice: &mut Dice) {
    let names = ["a", "b", "c"];
    let name = names[usize::try_from(dice.roll(3)).expect("it is small")];
    let replica = Arc::clone(town.replicas.lock().get(name).expect("all run"));
    match dice.roll(5) {
        0 => {
            town.crash(name);
            drop(replica);
            sleep(Duration::from_millis(dice.roll(600))).await;
            town.join_as(lasting(name)).await;
        }
        1 => {
            replica
                .planes
                .drain(Instant::now() + Duration::from_secs(2))
                .await;
            town.replicas.lock().remove(name);
            replica.planes.close().await;
            town.wires.listening.lock().remove(&id(name));
            town.join_as(lasting(name)).await;
        }
        2 => {
            let other = names[usize::try_from(dice.roll(3)).expect("it is small")];
            town.wires.cut.lock().push((id(name), id(other)));
            sleep(Duration::from_millis(dice.roll(300))).await;
            town.wires.cut.lock().clear();
        }
        3 => {
            let faults = [
                CommitFault::UnknownApplied,
                CommitFault::UnknownNotApplied,
                CommitFault::UnknownLate,
            ];
            let fault = &faults[usize::try_from(dice.roll(3)).expect("it is small")];
            let plan = replica.store.plan();
            plan.commits_matching(
                |_| true,
                fault.clone(),
                1 + usize::try_from(dice.roll(2)).expect("it is small"),
            );
            sleep(Duration::from_millis(dice.roll(200))).await;
            replica.store.apply_late().await;
        }
        _ => replica.planes.put_to_sleep(replica.planes.slots()).await,
    }
}

fn lasting(name: &str) -> ReplicaOptions {
    ReplicaOptions {
        member_ttl: Duration::from_secs(2),
        ..options(name)
    }
}

async fn run(seed: u64, misfortunes: u64) {
    let town = Town::new();
    for name in ["a", "b", "c"] {
        town.join_as(lasting(name)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for n in 0..4 {
        let birth = town.plane(&format!("p{n}")).await;
        let task = client(Arc::clone(&town), birth.clone(), Arc::clone(&stop));
        clients.push((birth, tokio::spawn(task)));
    }
    let mut dice = Dice(seed);
    for _ in 0..misfortunes {
        befall(&town, &mut dice).await;
        sleep(Duration::from_millis(dice.roll(150))).await;
    }
    stop.store(true, Ordering::Release);
    for (birth, client) in clients {
        let told = client.await.expect("every write was answered");
        judge(&town, &birth, &told, &format!("seed {seed}")).await;
    }
}

/// Checks the answers that a client got against the plane.
pub(super) async fn judge(town: &Town, birth: &Birth, told: &ViewMember, run: &str) {
    let versions = told.done.iter().map(|(_, version)| *version);
    assert!(versions.is_sorted_by(|a, b| a < b), "{run}: versions fell");
    let plane = town.find(birth).await;
    plane
        .answerable(Instant::now() + PATIENCE)
        .await
        .expect("it answers");
    let cut = plane.snapshot();
    for (name, _) in &told.done {
        assert!(value(&cut, name).is_some(), "{run}: {name} is lost");
    }
    for name in &told.denied {
        assert!(value(&cut, name).is_none(), "{run}: {name} was denied");
    }
    println!(
        "{run}, {}: {} done, {} denied",
        birth.id,
        told.done.len(),
        told.denied.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_clients_are_told_the_truth() {
    for seed in [1, 7] {
        run(seed, 12).await;
    }
}
