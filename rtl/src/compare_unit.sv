// SPDX-License-Identifier: Apache-2.0
//
// The striped comparators. Each beat of a line holds stripes of SlotsPerBeat slots, which are
// compared at once. The result of each slot is kept until the last line; then the verdict on all
// slots goes to the write unit with their headers. The key's stripes stay readable for that unit.
//
// A request that is forwarded has no lines. When all older ones are decided, the verdict is made of
// what the last write of its key left behind; the slots' headers mean nothing then.

module compare_unit
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeWords = 1,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyWord = 1,
  parameter int unsigned TermsWord = 3,
  localparam int unsigned BeatWidth = 64 * StripeWords * SlotsPerBeat,
  localparam int unsigned StripeWidth = 64 * StripeWords,
  localparam int unsigned LineWidth = $clog2(Lines + 1)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   op_valid_i,
  output logic                   op_ready_o,
  input  op_t                    op_i,
  input  logic                   stripe_valid_i,
  output logic                   stripe_ready_o,
  input  logic [StripeWidth-1:0] stripe_i,
  input  logic [StripeWords-1:0] mask_i,
  input  logic                   stripe_last_i,
  input  logic                   beat_valid_i,
  output logic                   beat_ready_o,
  input  logic [BeatWidth-1:0]   beat_i,

  output logic                   valid_o,
  input  logic                   ready_i,
  output op_t                    op_o,
  output logic [Slots-1:0]       match_o,
  output logic [Slots-1:0]       free_o,
  output logic [Slots-1:0]       expired_o,  // or its value was overwritten
  output logic [Slots-1:0]       young_o,
  output logic [Slots-1:0][63:0] locators_o,
  output logic [Slots-1:0][63:0] terms_o,
  output logic [Slots-1:0][47:0] pointers_o, // of the next verdict, for the log
  input  logic [Slots:0]         is_overwritten_i,   // the last is that of what is kept
  input  logic [Slots:0]         is_young_i,
  output logic                   kept_take_o, // what the last write left behind comes next
  input  logic [Slots-1:0]       kept_free_i,
  input  logic [Slots-1:0]       kept_holder_i,
  input  logic [31:0]            kept_expiry_i,
  input  logic [LineWidth-1:0]   line_i,     // index of the key stripe that the write unit reads
  output logic [StripeWidth-1:0] stripe_o,
  output logic [StripeWords-1:0] mask_o
);

  localparam int unsigned LineBeats = Slots / SlotsPerBeat;
  localparam int unsigned GroupWidth = LineBeats > 1 ? $clog2(LineBeats) : 1;
  localparam int unsigned TermsLine = TermsWord / StripeWords;
  localparam int unsigned TermsPlace = TermsWord % StripeWords;
  localparam logic [GroupWidth-1:0] LastGroup = GroupWidth'(LineBeats - 1);
  localparam int unsigned HoldWidth = $clog2(Lines) > 0 ? $clog2(Lines) : 1;

  if (Slots % SlotsPerBeat != 0) begin : gen_check
    $error("compare_unit: a line must be a whole number of beats");
  end

  logic [GroupWidth-1:0]        group_q;
  logic [LineWidth-1:0]         line_q;    // its position in the record
  logic                         is_last_line, is_last_beat, is_head, is_terms, has_key, has_bucket;
  logic                         finish, is_waiting_q, is_skipping, is_kept_q, is_gone, is_room;
  logic [Slots-1:0]             match_q, match, free_q, expired_q;
  logic [Slots-1:0][63:0]       locators_q, terms_q;
  logic [SlotsPerBeat-1:0]      is_equal, is_tagged, is_free;
  logic [15:0]                  tag;
  logic                         turn_q;    // which half of the held stripes belongs to this key
  logic [StripeWidth-1:0]       hold_stripes [2 << HoldWidth];
  logic [StripeWords-1:0]       hold_masks   [2 << HoldWidth];

  assign tag          = {op_i.meta.request.klen, op_i.check};
  assign has_key      = op_i.meta.request.klen != '0;
  assign is_head      = line_q == '0;
  assign is_terms     = line_q == LineWidth'(TermsLine);
  assign has_bucket   = has_key || op_i.meta.kind == KindDelete;   // or a sweep, without stripes
  assign is_last_line = has_key ? stripe_last_i : is_terms;
  assign is_last_beat = group_q == LastGroup;

  // The key's words end in this line, but the terms' line still follows.
  logic [LineWidth-1:0] last_key_line;
  logic                 is_next_terms;
  assign last_key_line = !has_key ? '0
                       : LineWidth'((KeyWord + (32'(op_i.meta.request.klen) - 1) / 8)
                                    / StripeWords);
  assign is_next_terms = line_q == last_key_line;

  // A beat is taken together with its stripe and its request, and only when a verdict has room.
  assign beat_ready_o   = op_valid_i && (stripe_valid_i || !has_key) && has_bucket
                          && !is_waiting_q && !op_i.is_forwarded;
  assign is_skipping    = op_valid_i && stripe_valid_i && op_i.is_forwarded && !is_waiting_q;
  assign stripe_ready_o = (beat_ready_o && beat_valid_i && is_last_beat && has_key) || is_skipping;
  assign is_room        = !valid_o || ready_i;
  assign finish         = (is_waiting_q && (is_kept_q || !op_i.is_forwarded))
                          || (op_valid_i && !has_bucket);
  assign op_ready_o     = finish && is_room;
  assign kept_take_o    = is_waiting_q && op_i.is_forwarded && is_room;

  for (genvar p = 0; p < SlotsPerBeat; p++) begin : gen_slot
    stripe_comparator #(.StripeWords(StripeWords)) u_comparator (
      .stripe_i(beat_i[StripeWidth*p+:StripeWidth]), .key_i(stripe_i), .mask_i, .tag_i(tag),
      .is_equal_o(is_equal[p]), .is_tagged_o(is_tagged[p]), .is_free_o(is_free[p])
    );
  end

  for (genvar i = 0; i < Slots; i++) begin : gen_state
    localparam int unsigned Place = i % SlotsPerBeat;
    localparam int unsigned Offset = StripeWidth * Place;
    logic is_mine;
    assign is_mine  = beat_valid_i && beat_ready_o
                      && group_q == GroupWidth'(i / SlotsPerBeat);
    assign match[i] = is_equal[Place] && (is_head ? is_tagged[Place] : match_q[i]);
    always_ff @(posedge clk_i) begin
      if (is_mine) match_q[i] <= match[i];
      if (is_mine && is_head) begin
        locators_q[i] <= beat_i[Offset+:64];
        free_q[i]     <= is_free[Place];
      end
      if (is_mine && is_terms) terms_q[i] <= beat_i[Offset+64*TermsPlace+:64];
    end
    assign pointers_o[i] = locators_q[i][47:0];
    // A free slot's terms are 0.
    expiry u_expiry (
      .expiry_i(terms_q[i][31:0]), .now_i(op_i.now), .is_expired_o(expired_q[i])
    );
  end

  logic is_kept_expired;
  expiry u_kept (.expiry_i(kept_expiry_i), .now_i(op_i.now), .is_expired_o(is_kept_expired));
  assign is_gone = is_kept_expired || is_overwritten_i[Slots];

  assign stripe_o = hold_stripes[{!turn_q, line_i[HoldWidth-1:0]}];
  assign mask_o   = hold_masks[{!turn_q, line_i[HoldWidth-1:0]}];

  always_ff @(posedge clk_i) begin
    if (beat_ready_o || is_skipping) begin
      hold_stripes[{turn_q, line_q[HoldWidth-1:0]}] <= stripe_i;
      hold_masks[{turn_q, line_q[HoldWidth-1:0]}]   <= mask_i;
    end
    if (op_valid_i && op_ready_o) begin
      op_o       <= op_i;
      // What was overwritten is as good as free, whether it was swept yet or not.
      match_o    <= has_key ? match_q & ~is_overwritten_i[Slots-1:0] : '0;
      free_o     <= free_q;
      // The write unit is done with all older requests, so the log's head is that of this one.
      expired_o  <= expired_q | (is_overwritten_i[Slots-1:0] & ~free_q);
      young_o    <= is_young_i[Slots-1:0];
      if (op_i.is_forwarded) begin
        match_o   <= is_overwritten_i[Slots] ? '0 : kept_holder_i;
        free_o    <= kept_free_i;
        expired_o <= is_gone ? kept_holder_i : '0;
        young_o   <= {Slots{is_young_i[Slots]}};
      end
      locators_o <= locators_q;
      terms_o    <= terms_q;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      group_q      <= '0;
      line_q       <= '0;
      is_waiting_q <= 1'b0;
      valid_o      <= 1'b0;
      turn_q       <= 1'b0;
      is_kept_q    <= 1'b0;
    end else begin
      is_kept_q <= kept_take_o && !op_ready_o;
      if ((beat_valid_i && beat_ready_o) || is_skipping) begin
        group_q <= is_last_beat || is_skipping ? '0 : group_q + 1'b1;
        if (is_last_beat || is_skipping) begin
          is_waiting_q <= is_last_line;
          if (is_last_line) line_q <= '0;
          // After the key's last line comes the terms' line, wherever it is.
          else line_q <= is_next_terms ? LineWidth'(TermsLine) : line_q + 1'b1;
        end
      end
      if (op_valid_i && op_ready_o) begin
        is_waiting_q <= 1'b0;
        turn_q       <= !turn_q;
      end
      valid_o <= (op_valid_i && op_ready_o) || (valid_o && !ready_i);
    end
  end

endmodule
