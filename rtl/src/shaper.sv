// SPDX-License-Identifier: Apache-2.0
//
// Gives an item the length that its request states: pads a short one with zeros, cuts a long one,
// discards an item that is not kept, and reports at the end whether the stated length was wrong. It
// never waits for anything beyond the end of the item.

module shaper #(
  parameter int unsigned LengthWidth = 8
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   task_valid_i,
  output logic                   task_pop_o,
  input  logic [LengthWidth-1:0] length_i,  // bytes
  input  logic                   keep_i,

  input  logic                   valid_i,
  output logic                   ready_o,
  input  logic [63:0]            data_i,
  input  logic [7:0]             strobe_i,
  input  logic                   last_i,

  output logic                   valid_o,
  input  logic                   ready_i,
  output logic [63:0]            data_o,
  output logic                   last_o,

  output logic                   done_o,
  output logic                   is_wrong_o
);

  typedef enum logic [1:0] {StItem, StPad, StDrain} state_e;
  state_e state_q, state_d;

  logic [LengthWidth-1:0] sent_q, left;  // bytes sent, bytes still to send
  logic is_last_beat, is_short_strobe, advance;
  logic [7:0] wanted_strobe;

  assign left            = length_i - sent_q;
  assign is_last_beat    = left <= LengthWidth'(8);
  assign wanted_strobe   = left >= LengthWidth'(8) ? 8'hff : ~(8'hff << left[2:0]);
  assign is_short_strobe = strobe_i != wanted_strobe;

  for (genvar i = 0; i < 8; i++) begin : gen_byte
    assign data_o[8*i+:8] =
        state_q == StItem && strobe_i[i] && wanted_strobe[i] ? data_i[8*i+:8] : '0;
  end
  assign last_o = is_last_beat;

  always_comb begin
    state_d    = state_q;
    valid_o    = 1'b0;
    ready_o    = 1'b0;
    done_o     = 1'b0;
    is_wrong_o = 1'b0;
    advance    = 1'b0;
    unique case (state_q)
      StItem: begin
        if (task_valid_i && length_i == '0) begin
          done_o = 1'b1;
        end else if (task_valid_i) begin
          valid_o = valid_i && keep_i;
          ready_o = ready_i || !keep_i;
          if (valid_i && ready_o) begin
            advance = 1'b1;
            if (last_i) begin
              done_o     = is_last_beat || !keep_i;
              is_wrong_o = is_short_strobe || !is_last_beat;
              if (!done_o) state_d = StPad;
            end else if (is_last_beat) begin
              state_d = StDrain;
            end
          end
        end
      end
      StPad: begin
        valid_o    = keep_i;
        advance    = ready_i;
        done_o     = ready_i && is_last_beat;
        is_wrong_o = 1'b1;
        if (done_o) state_d = StItem;
      end
      default: begin
        ready_o    = 1'b1;
        done_o     = valid_i && last_i;
        is_wrong_o = 1'b1;
        if (done_o) state_d = StItem;
      end
    endcase
  end
  assign task_pop_o = done_o;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StItem;
      sent_q  <= '0;
    end else begin
      state_q <= state_d;
      if (done_o) sent_q <= '0;
      else if (advance && !is_last_beat) sent_q <= sent_q + LengthWidth'(8);
    end
  end

endmodule
