//! The calls that a plan makes to webhooks, converters and authorizers, and their replies.
//!
//! Invariant: of equal calls only the first is sent.

use crate::authority::{Access, Asked, Authority, AuthorizerOutcome, AuthorizerRun};
use crate::kinds::conversion;
use crate::kinds::conversion::Converter;
use crate::request::call::Call;
use bytes::Bytes;
use futures_util::future::join_all;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{Attributes, Decision};
use polyplane_plane::Snapshot;
use std::sync::Arc;

/// The reason why a run of a plan ended early.
pub enum Interrupted {
    /// The request fails with this error, once the state that the run read is durable.
    Failed(ApiError),
    /// The run needs the version of an object whose commit is still under way.
    VersionUnsettled,
    /// The run needs replies to calls that have not been made yet.
    NeedsReplies,
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// A call to a webhook, converter or authorizer: the receiver and the request.
#[derive(Clone)]
pub(crate) enum CallOut {
    /// To the webhook behind an admission plug-in.
    Admission {
        /// The plug-in's position in the chain.
        plugin: usize,
        sent: Bytes,
    },
    /// To the converter of a kind.
    Conversion {
        converter: Arc<dyn Converter>,
        object: Value,
        from: Str,
        to: Str,
    },
    /// To an authorizer, by its position in the authority.
    Access { authorizer: usize, access: Access },
}

impl PartialEq for CallOut {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Admission { plugin, sent }, Self::Admission { plugin: p, sent: s }) => {
                plugin == p && sent == s
            }
            (
                Self::Conversion {
                    object, from, to, ..
                },
                Self::Conversion {
                    object: o,
                    from: f,
                    to: t,
                    ..
                },
                // A plan writes objects of one kind, which has one converter.
            ) => from == f && to == t && object == o,
            (
                Self::Access { authorizer, access },
                Self::Access {
                    authorizer: b,
                    access: a,
                },
            ) => authorizer == b && access == a,
            _ => false,
        }
    }
}

/// The reply to a [`CallOut`].
#[derive(Clone)]
pub(crate) enum Reply {
    /// The reply of the webhook behind an admission plug-in.
    Said(Bytes),
    /// The reply of a converter.
    Converted(Value),
    /// The reply of an authorizer.
    Decided(Decision),
}

/// Number of replies that are kept although the last run did not need them. Without them a write
/// that fails again and again because other writes come first would repeat calls that it has
/// already made.
const UNASKED_MAX: usize = 32;
/// Bytes of those calls and replies at most, so that they cannot fill the memory.
const UNASKED_BYTES_MAX: usize = 1 << 20;

/// A call with its reply.
pub(crate) type RepliedCallOut = (CallOut, Result<Reply, ApiError>);

struct Known {
    question: CallOut,
    answer: Result<Reply, ApiError>,
    /// True if the present run has needed the reply.
    asked: bool,
}

impl Known {
    fn bytes(&self) -> usize {
        let sent = match &self.question {
            CallOut::Admission { sent, .. } => sent.len(),
            CallOut::Conversion { object, .. } => json::to_vec(object).len(),
            CallOut::Access { access, .. } => access.bytes(),
        };
        let got = match &self.answer {
            Ok(Reply::Said(said)) => said.len(),
            Ok(Reply::Converted(_) | Reply::Decided(_)) => sent,
            Err(_) => 0,
        };
        sent + got
    }
}

/// All replies that a plan has received, kept from one run to the next.
#[derive(Default)]
pub(crate) struct CallOutMemo {
    known: Vec<Known>,
    open: Vec<CallOut>,
}

impl CallOutMemo {
    /// Returns the replies as a run over `cut` sees them.
    pub(super) fn begin<'r>(
        &'r mut self,
        authority: &'r Authority,
        cut: &'r Snapshot,
    ) -> CallOuts<'r> {
        self.open.clear();
        self.known.iter_mut().for_each(|known| known.asked = false);
        CallOuts {
            memo: self,
            plugin: 0,
            authority,
            cut,
        }
    }

    /// Returns whether there are replies that the last run did not need.
    pub(crate) fn has_unasked(&self) -> bool {
        self.known.iter().any(|known| !known.asked)
    }

    /// Returns the calls that the last run needs and that have no reply.
    pub(crate) fn take_open(&mut self) -> Vec<CallOut> {
        std::mem::take(&mut self.open)
    }

    /// Keeps replies. Of the replies that the last run did not need, it drops the oldest.
    pub(crate) fn keep(&mut self, answers: Vec<RepliedCallOut>) {
        let (mut count, mut bytes) = (0, 0);
        let mut newest_first = std::mem::take(&mut self.known);
        newest_first.reverse();
        newest_first.retain(|known| {
            if !known.asked {
                count += 1;
                bytes += known.bytes();
            }
            known.asked || (count <= UNASKED_MAX && bytes <= UNASKED_BYTES_MAX)
        });
        newest_first.reverse();
        self.known = newest_first;
        let answers = answers.into_iter().map(|(question, answer)| Known {
            question,
            answer,
            asked: false,
        });
        self.known.extend(answers);
    }
}

/// The replies of webhooks, converters and authorizers, as one stage of one run sees them.
pub struct CallOuts<'r> {
    memo: &'r mut CallOutMemo,
    plugin: usize,
    authority: &'r Authority,
    cut: &'r Snapshot,
}

impl CallOuts<'_> {
    /// Returns the replies for one plug-in of the chain.
    pub(super) fn of(&mut self, plugin: usize) -> CallOuts<'_> {
        CallOuts {
            memo: self.memo,
            plugin,
            authority: self.authority,
            cut: self.cut,
        }
    }

    /// Returns the reply of [`Admission::call`](super::Admission::call) to these bytes.
    ///
    /// # Errors
    /// Returns [`Interrupted::NeedsReplies`] if the call has not been made yet. The caller must
    /// pass that on: the plan then runs again with the reply.
    pub fn ask(&mut self, sent: Bytes) -> Result<Result<Bytes, ApiError>, Interrupted> {
        self.ask_all(vec![sent]).map(|mut all| all.remove(0))
    }

    /// Works as [`Self::ask`], with several calls that are made concurrently. Returns one reply for
    /// each.
    ///
    /// # Errors
    /// See [`Self::ask`].
    pub fn ask_all(
        &mut self,
        sent: Vec<Bytes>,
    ) -> Result<Vec<Result<Bytes, ApiError>>, Interrupted> {
        let mut answers = Vec::with_capacity(sent.len());
        for sent in sent {
            let plugin = self.plugin;
            let answer = self.look_up(CallOut::Admission { plugin, sent });
            answers.extend(answer.map(|answer| match answer? {
                Reply::Said(said) => Ok(said),
                Reply::Converted(_) | Reply::Decided(_) => Err(mixed_up()),
            }));
        }
        if self.memo.open.is_empty() {
            Ok(answers)
        } else {
            Err(Interrupted::NeedsReplies)
        }
    }

    /// Returns an object as its kind's converter has converted it.
    pub(super) fn convert(
        &mut self,
        converter: Arc<dyn Converter>,
        object: Value,
        (from, to): (&str, &str),
    ) -> Result<Result<Value, ApiError>, Interrupted> {
        let question = CallOut::Conversion {
            converter,
            object,
            from: from.into(),
            to: to.into(),
        };
        match self.look_up(question) {
            None => Err(Interrupted::NeedsReplies),
            Some(Ok(Reply::Converted(object))) => Ok(Ok(object)),
            Some(Ok(Reply::Said(_) | Reply::Decided(_))) => Ok(Err(mixed_up())),
            Some(Err(error)) => Ok(Err(error)),
        }
    }

    /// Authorizes an access that a write needs beside the request itself, such as the right to
    /// grant a role. Authorizers that read objects decide by the state that this run sees, the one
    /// that the write is prepared against. A decision that must still hold when the write is
    /// sequenced needs a claim.
    ///
    /// # Errors
    /// Returns what [`Self::ask`] returns, if an authorizer has to call a webhook; 500 if that call
    /// failed.
    pub fn authorize(&mut self, attributes: &Attributes<'_>) -> Result<Decision, Interrupted> {
        self.decide(attributes, Asked::First)
    }

    /// Authorizes an access again that was granted before, in the state that this run sees.
    ///
    /// # Errors
    /// See [`Self::authorize`].
    pub(super) fn authorize_again(
        &mut self,
        attributes: &Attributes<'_>,
    ) -> Result<Decision, Interrupted> {
        self.decide(attributes, Asked::Again)
    }

    fn decide(
        &mut self,
        attributes: &Attributes<'_>,
        asked: Asked,
    ) -> Result<Decision, Interrupted> {
        let mut authorizer_run = AuthorizerRun::new(self.authority, self.cut, attributes, asked);
        loop {
            let authorizer = match authorizer_run.resume() {
                AuthorizerOutcome::Decided(decision) => return Ok(decision),
                AuthorizerOutcome::Waits(authorizer, _) => authorizer,
            };
            let user = Arc::new(attributes.user.clone());
            let access = Access::new(user, attributes);
            let decision = match self.look_up(CallOut::Access { authorizer, access }) {
                None => return Err(Interrupted::NeedsReplies),
                Some(Ok(Reply::Decided(decision))) => decision,
                Some(Ok(Reply::Said(_) | Reply::Converted(_))) => return Err(mixed_up().into()),
                Some(Err(error)) => return Err(error.into()),
            };
            if let Some(settled) = authorizer_run.note(decision) {
                return Ok(settled);
            }
        }
    }

    /// Returns the reply to a call. If there is none yet, records that the call is needed.
    fn look_up(&mut self, question: CallOut) -> Option<Result<Reply, ApiError>> {
        let mut known = self.memo.known.iter_mut();
        if let Some(known) = known.find(|known| known.question == question) {
            known.asked = true;
            return Some(known.answer.clone());
        }
        if !self.memo.open.contains(&question) {
            self.memo.open.push(question);
        }
        None
    }
}

fn mixed_up() -> ApiError {
    ApiError::internal("an answer to another question")
}

/// Makes all calls concurrently and returns them with their replies.
pub(crate) async fn call_out(call: &Call<'_>, questions: Vec<CallOut>) -> Vec<RepliedCallOut> {
    let services = &call.services;
    let authority = call.authority();
    let asked = questions.into_iter().map(|question| async move {
        let answer = match &question {
            CallOut::Admission { plugin, sent } => {
                let plugin = services.admission.plugin(*plugin);
                plugin.call(sent).await.map(Reply::Said)
            }
            CallOut::Conversion {
                converter,
                object,
                from,
                to,
            } => {
                let converted = converter.convert(vec![object.clone()], from, to).await;
                converted.and_then(conversion::only).map(Reply::Converted)
            }
            CallOut::Access { authorizer, access } => {
                let decided = authority.ask(*authorizer, access).await;
                decided.map(Reply::Decided)
            }
        };
        (question, answer)
    });
    join_all(asked).await
}
