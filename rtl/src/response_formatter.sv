// SPDX-License-Identifier: Apache-2.0
//
// Turns answers into frames: Ethernet, IPv4 and UDP headers to the request's client, memcached's
// UDP header if requests have one, its binary header, the flags and the value of a hit. Clients
// wait in a queue in the order of their requests; that of a quiet request whose answer is left out
// leaves it with `ended_i`. IPv4's checksum is computed, UDP's is 0: none.
//
// Heads are 66 or 74 bytes, 70 or 78 with flags: so a value always begins six bytes into a beat.

module response_formatter
  import ht_pkg::*;
#(
  parameter int unsigned Clients = 128   // requests between the parser and here
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,

  input  logic        client_valid_i,
  output logic        client_ready_o,
  input  client_t     client_i,
  input  logic        ended_i,          // the oldest request gets no answer

  input  logic        meta_valid_i,
  output logic        meta_ready_o,
  input  response_t   meta_i,
  input  logic        val_valid_i,
  output logic        val_ready_o,
  input  beat_t       val_i,

  output logic        frame_valid_o,
  input  logic        frame_ready_i,
  output logic [63:0] frame_data_o,
  output logic [7:0]  frame_keep_o,
  output logic        frame_last_o
);

  logic      has_client, start;
  client_t   client, to_q;
  response_t answer_q;

  fifo #(.Width($bits(client_t)), .Depth(Clients)) u_clients (
    .clk_i, .rst_ni, .valid_i(client_valid_i), .ready_o(client_ready_o), .data_i(client_i),
    .valid_o(has_client), .ready_i(start || ended_i), .data_o(client), .level_o()
  );

  typedef enum logic [1:0] {StIdle, StHead, StValue} state_e;
  state_e state_q;

  logic [3:0]  beat_q, last_beat;
  logic [23:0] left_q;      // bytes of the value not sent yet
  logic [47:0] carry_q;     // six bytes received and not sent
  logic        is_head_end, is_value_here, needs_value, is_out;

  assign meta_ready_o = state_q == StIdle && has_client;
  assign start        = meta_ready_o && meta_valid_i;

  // The head, in words of two bytes.
  logic [15:0] body_low, udp_bytes, ip_bytes, header_sum;
  logic [23:0] body_bytes;
  logic [19:0] sum;
  logic [15:0] word [40];
  assign body_bytes = answer_q.hit ? answer_q.vlen + 24'd4 : '0;
  assign body_low   = body_bytes[15:0];
  assign udp_bytes  = 16'd32 + body_low + (has_header_i ? 16'd8 : '0);
  assign ip_bytes   = udp_bytes + 16'd20;
  assign sum        = 20'h4500 + 20'(ip_bytes) + 20'h4000 + 20'h4011 + 20'(ip_i[31:16])
                      + 20'(ip_i[15:0]) + 20'(to_q.ip[31:16]) + 20'(to_q.ip[15:0]);
  assign header_sum = ~fold(sum);

  function automatic logic [15:0] fold(logic [19:0] value);
    logic [16:0] once = 17'(value[15:0]) + 17'(value[19:16]);
    return once[15:0] + 16'(once[16]);
  endfunction

  logic [15:0] packet [14];   // memcached's
  assign packet = '{
    {8'h81, answer_q.opcode}, 16'h0, {answer_q.hit ? 8'd4 : 8'd0, 8'h0}, answer_q.status,
    {8'h0, body_bytes[23:16]}, body_low, to_q.opaque[31:16], to_q.opaque[15:0],
    16'h0, 16'h0, 16'h0, 16'h0, answer_q.flags[31:16], answer_q.flags[15:0]
  };
  always_comb begin
    word       = '{default: '0};
    word[0:2]  = '{to_q.mac[47:32], to_q.mac[31:16], to_q.mac[15:0]};
    word[3:5]  = '{to_q.own_mac[47:32], to_q.own_mac[31:16], to_q.own_mac[15:0]};
    word[6:12] = '{16'h0800, 16'h4500, ip_bytes, 16'h0, 16'h4000, 16'h4011, header_sum};
    word[13:16] = '{ip_i[31:16], ip_i[15:0], to_q.ip[31:16], to_q.ip[15:0]};
    word[17:20] = '{port_i, to_q.port, udp_bytes, 16'h0};
    if (has_header_i) begin
      word[21:24] = '{to_q.frame_id, 16'd0, 16'd1, 16'd0};
      for (int unsigned i = 0; i < 14; i++) word[25+i] = packet[i];
    end else begin
      for (int unsigned i = 0; i < 14; i++) word[21+i] = packet[i];
    end
  end

  logic [63:0] head;
  for (genvar i = 0; i < 4; i++) begin : gen_head
    logic [15:0] here;
    assign here = word[{beat_q, 2'(i)}];
    assign head[16*i+:16] = {here[7:0], here[15:8]};
  end

  assign last_beat   = has_header_i ? 4'd9 : 4'd8;
  assign is_head_end = state_q == StHead && beat_q == last_beat;
  // Two bytes of the value complete the head's last beat, and any later one.
  assign needs_value   = (is_head_end && left_q != '0) || (state_q == StValue && left_q > 24'd6);
  assign is_value_here = !needs_value || val_valid_i;
  assign frame_valid_o = state_q != StIdle && is_value_here;
  assign is_out        = frame_valid_o && frame_ready_i;
  assign val_ready_o   = needs_value && frame_ready_i;

  always_comb begin
    frame_data_o = head;
    frame_keep_o = 8'hff;
    frame_last_o = 1'b0;
    if (is_head_end) begin
      frame_last_o = left_q <= 24'd2;
      frame_keep_o = !answer_q.hit ? 8'h03 : left_q == '0 ? 8'h3f : left_q == 24'd1 ? 8'h7f : 8'hff;
      if (answer_q.hit) frame_data_o[63:48] = val_i.data[15:0];
    end else if (state_q == StValue) begin
      frame_data_o = {val_i.data[15:0], carry_q};
      frame_last_o = left_q <= 24'd8;
      if (left_q < 24'd8) frame_keep_o = ~(8'hff << left_q[2:0]);
    end
  end

  always_ff @(posedge clk_i) begin
    if (start) begin
      to_q     <= client;
      answer_q <= meta_i;
    end
    if (val_valid_i && val_ready_o) carry_q <= val_i.data[63:16];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StIdle;
      beat_q  <= '0;
      left_q  <= '0;
    end else if (start) begin
      state_q <= StHead;
      beat_q  <= '0;
      left_q  <= meta_i.hit ? meta_i.vlen : '0;
    end else if (is_out) begin
      beat_q <= beat_q + 1'b1;
      if (is_head_end) left_q <= left_q - 24'd2;
      if (state_q == StValue) left_q <= left_q - 24'd8;
      if (frame_last_o) state_q <= StIdle;
      else if (is_head_end) state_q <= StValue;
    end
  end

endmodule
