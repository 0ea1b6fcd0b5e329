//! POST: creating a new object.

use crate::answer::negotiate;
use crate::answer::negotiate::BodySyntax;
use crate::plan::{
    self, ChangeRequest, Decoded, Defaulted, Interrupted, ObjectChange, PathName, Rules, Run,
    Target,
};
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::WriteOptions;
use crate::write::{self, Written};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;

/// Creates the object of the request's body.
///
/// # Errors
/// Returns upstream's errors; see the crate's documentation.
pub async fn create(call: &Call<'_>) -> Result<Written, ApiError> {
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let sent = Sent::read(call, syntax, &options, PathName::Absent)?;
    let mut create = Create {
        request: ChangeRequest {
            call,
            name: sent.name(),
            options,
        },
        sent,
    };
    write::change(call, &mut create).await
}

struct Create<'a> {
    request: ChangeRequest<'a>,
    sent: Sent,
}

impl ObjectChange for Create<'_> {
    fn request(&self) -> &ChangeRequest<'_> {
        &self.request
    }

    fn rules(&self) -> Rules<'_> {
        Rules::OfKind("")
    }

    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted> {
        let sent = self
            .sent
            .take(run.call, &self.request.options, PathName::Absent)?;
        Ok((sent, Target::New))
    }

    fn default(&self, call: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError> {
        plan::default(call, decoded, PathName::Absent)
    }
}

/// The object in a request's body. Most plans are prepared once and consume it. A plan that is
/// prepared again parses the body again, so that none has to keep a copy.
pub(crate) struct Sent {
    syntax: BodySyntax,
    object: Option<Defaulted>,
}

impl Sent {
    /// Reads the body.
    ///
    /// # Errors
    /// Returns 400 if the body is not an object of the kind, or contradicts the path.
    pub(crate) fn read(
        call: &Call<'_>,
        syntax: BodySyntax,
        options: &WriteOptions,
        path_name: PathName<'_>,
    ) -> Result<Self, ApiError> {
        let mut sent = Self {
            syntax,
            object: None,
        };
        sent.object = Some(sent.take(call, options, path_name)?);
        Ok(sent)
    }

    /// Returns the name that the client gives the object.
    pub(crate) fn name(&self) -> Str {
        let tree = self.object.as_ref().map(Defaulted::tree);
        let name = tree.map(|tree| tree.str_at(&["metadata", "name"]));
        name.unwrap_or_default().into()
    }

    /// Returns the object that [`Self::read`] has read. A further call parses the body again.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub(crate) fn take(
        &mut self,
        call: &Call<'_>,
        options: &WriteOptions,
        path_name: PathName<'_>,
    ) -> Result<Defaulted, ApiError> {
        if let Some(object) = self.object.take() {
            return Ok(object);
        }
        let expected = Expected::of(call.row);
        let sent = body::decode_as_sent(call, self.syntax, expected, options.field_validation)?;
        let mut object = plan::default(call, Decoded::as_sent(sent.tree, sent.beyond), path_name)?;
        object.refuse_later(sent.other_kind);
        Ok(object)
    }
}
