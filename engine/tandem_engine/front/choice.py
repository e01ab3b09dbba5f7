"""One choice of a request on the engine's thread: its text so far and its timeline."""

from tandem_engine.api.output import FinishReason, Output
from tandem_engine.api.request import Request
from tandem_engine.api.step import Advance
from tandem_engine.front.stream import RequestStream
from tandem_engine.front.timeline import Timeline
from tandem_engine.text.codec import CheckpointCodec
from tandem_engine.text.detokenizer import StopStrings


class Choice:
    """Turns the tokens of one sequence into outputs for its stream."""

    def __init__(
        self,
        request: Request,
        *,
        index: int,
        stream: RequestStream,
        codec: CheckpointCodec,
        arrived: float,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.index = index
        self.stream = stream
        self.timeline = Timeline(arrived)
        self._text = codec.detokenizer(skip_special_tokens=sampling.skip_special_tokens)
        self._stops = StopStrings(sampling.stop)

    def output(self, advance: Advance) -> Output:
        """What one more token means to the reader; a stop string may end the choice here."""
        token = advance.token
        reason = advance.finish_reason
        # The token that ended it is not part of the text, only of the count.
        piece = "" if reason == "stop" else self._text.push(token.token_id)
        text, met = self._stops.push(piece)
        if reason is not None and not met:
            text, met = self._rest(text)
        return Output(
            index=self.index,
            text=text,
            token_ids=(token.token_id,),
            logprobs=() if token.logprob is None else (token.logprob,),
            finish_reason=_reason(reason, met=met),
        )

    def _rest(self, text: str) -> tuple[str, bool]:
        """The text with all that was held back: the output ends here."""
        more, met = self._stops.push(self._text.flush())
        return text + more + ("" if met else self._stops.flush()), met


def _reason(reason: FinishReason | None, *, met: bool) -> FinishReason | None:
    return "stop" if met else reason
