// SPDX-License-Identifier: Apache-2.0
//
// A memory behind the port, with the timing of a DRAM as far as a client feels it: latency, the
// cycles that a burst takes, the turn between reading and writing, refresh, and chance on top of
// them. An access takes effect when it is accepted.

module memory_model #(
  parameter int unsigned BeatWords = 8,
  parameter int unsigned CountWidth = 1,
  parameter int unsigned AddressWidth = 32,
  parameter int unsigned Beats = 4096,
  parameter int unsigned Outstanding = 256,   // beats that readers have room for
  localparam int unsigned BeatWidth = 64 * BeatWords
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [15:0]             latency_i,     // cycles from a read to its first beat
  input  logic [7:0]              burst_i,       // cycles between two bursts, at least
  input  logic [7:0]              turn_i,        // more of them when the direction changes
  input  logic [15:0]             refresh_every_i,
  input  logic [7:0]              refresh_i,     // cycles of a refresh
  input  logic [7:0]              jitter_i,      // mask of random cycles on top of the latency
  input  logic [7:0]              stall_i,       // of 256 cycles, those in which nothing is taken

  input  logic                    valid_i,
  output logic                    ready_o,
  input  logic                    write_i,
  input  logic                    last_i,
  input  logic                    is_value_i,
  input  logic [CountWidth-1:0]   count_i,
  input  logic [AddressWidth-1:0] address_i,
  input  logic [BeatWidth-1:0]    data_i,
  input  logic [BeatWords-1:0]    mask_i,
  output logic                    return_valid_o,
  output logic                    return_is_value_o,
  output logic [BeatWidth-1:0]    return_o,

  input  logic [31:0]             peek_address_i,   // in words, past all timing
  output logic [63:0]             peek_o,
  input  logic                    poke_i,
  input  logic [63:0]             poke_data_i
);

  localparam int unsigned IndexWidth = $clog2(Beats);
  localparam int unsigned QueueWidth = $clog2(Outstanding);

  logic [BeatWidth-1:0] store [Beats];

  // Beats on their way.
  logic [BeatWidth-1:0] queue_data  [2 ** QueueWidth];
  logic [31:0]          queue_due   [2 ** QueueWidth];
  logic                 queue_value [2 ** QueueWidth];
  logic [QueueWidth:0]  head_q, tail_q;

  logic [31:0] time_q, random_q, due_q;
  logic [15:0] refresh_q;
  logic [7:0]  busy_q, beats_q;
  logic [CountWidth-1:0] fetch_q;       // beats of the read under way still to be fetched
  logic [IndexWidth-1:0] fetch_address_q;
  logic is_value_q, was_write_q, is_inside_q;
  logic [IndexWidth-1:0] index, peek_index;
  logic [7:0] cycles, turn;

  assign index      = address_i[IndexWidth-1:0];
  assign peek_index = IndexWidth'(peek_address_i / BeatWords);
  assign peek_o     = store[peek_index][64*(peek_address_i%BeatWords)+:64];
  assign ready_o    = busy_q == '0 && fetch_q == '0 && random_q[7:0] >= stall_i;
  assign turn       = was_write_q != write_i && !is_inside_q ? turn_i : '0;
  assign cycles     = beats_q + 8'd1 >= burst_i ? '0 : burst_i - beats_q - 8'd1;

  assign return_valid_o    = head_q != tail_q && time_q - queue_due[head_q[QueueWidth-1:0]] < 2**31;
  assign return_is_value_o = queue_value[head_q[QueueWidth-1:0]];
  assign return_o          = queue_data[head_q[QueueWidth-1:0]];

  logic is_fetching;
  logic [IndexWidth-1:0] fetch_address;
  assign is_fetching   = fetch_q != '0 || (valid_i && ready_o && !write_i);
  assign fetch_address = fetch_q != '0 ? fetch_address_q : index;

  always_ff @(posedge clk_i) begin
    if (poke_i) store[peek_index][64*(peek_address_i%BeatWords)+:64] <= poke_data_i;
    if (valid_i && ready_o && write_i) begin
      for (int unsigned i = 0; i < BeatWords; i++) begin
        if (mask_i[i]) store[index][64*i+:64] <= data_i[64*i+:64];
      end
    end
    if (is_fetching) begin
      queue_data[tail_q[QueueWidth-1:0]]  <= store[fetch_address];
      queue_value[tail_q[QueueWidth-1:0]] <= fetch_q != '0 ? is_value_q : is_value_i;
      queue_due[tail_q[QueueWidth-1:0]]   <= fetch_q != '0 ? due_q
          : time_q + 32'(latency_i) + 32'(turn) + 32'({random_q[15:8] & jitter_i});
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q          <= '0;
      tail_q          <= '0;
      time_q          <= '0;
      random_q        <= 32'h1234_5678;
      due_q           <= '0;
      refresh_q       <= '0;
      busy_q          <= '0;
      beats_q         <= '0;
      fetch_q         <= '0;
      fetch_address_q <= '0;
      is_value_q      <= 1'b0;
      was_write_q     <= 1'b0;
      is_inside_q     <= 1'b0;
    end else begin
      time_q    <= time_q + 1'b1;
      random_q  <= {random_q[30:0], random_q[31] ^ random_q[21] ^ random_q[1] ^ random_q[0]};
      refresh_q <= refresh_q == '0 ? refresh_every_i : refresh_q - 1'b1;
      if (busy_q != '0) busy_q <= busy_q - 1'b1;
      if (is_fetching) tail_q <= tail_q + 1'b1;
      if (return_valid_o) head_q <= head_q + 1'b1;
      if (fetch_q != '0) begin
        fetch_q         <= fetch_q - 1'b1;
        fetch_address_q <= fetch_address_q + 1'b1;
      end
      if (valid_i && ready_o) begin
        was_write_q <= write_i;
        if (write_i) begin
          is_inside_q <= !last_i;
          beats_q     <= last_i ? '0 : beats_q + 1'b1;
          if (last_i) busy_q <= cycles + turn;
        end else begin
          fetch_q         <= count_i - 1'b1;
          fetch_address_q <= index + 1'b1;
          is_value_q      <= is_value_i;
          due_q           <= time_q + 32'(latency_i) + 32'(turn)
                             + 32'({random_q[15:8] & jitter_i});
          busy_q          <= (burst_i == '0 ? '0 : burst_i - 1'b1) + turn;
        end
      end else if (refresh_q == '0 && refresh_every_i != '0 && !is_inside_q && busy_q == '0) begin
        busy_q <= refresh_i;
      end
    end
  end

endmodule
