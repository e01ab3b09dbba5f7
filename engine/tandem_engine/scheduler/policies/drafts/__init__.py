"""How many drafts a sequence may have in a step."""

from tandem_engine.scheduler.policies.drafts.acceptance import Acceptance as Acceptance
from tandem_engine.scheduler.policies.drafts.draft_policy import AllDrafts as AllDrafts
from tandem_engine.scheduler.policies.drafts.draft_policy import Checked as Checked
from tandem_engine.scheduler.policies.drafts.draft_policy import CheckedDrafts as CheckedDrafts
from tandem_engine.scheduler.policies.drafts.draft_policy import DraftPolicy as DraftPolicy
from tandem_engine.scheduler.policies.drafts.draft_policy import Room as Room
from tandem_engine.scheduler.policies.drafts.paying_drafts import PayingDrafts as PayingDrafts
