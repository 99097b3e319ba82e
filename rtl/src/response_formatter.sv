// SPDX-License-Identifier: Apache-2.0
//
// Turns answers into frames: Ethernet, IPv4 and UDP headers to the request's client, memcached's
// UDP header if requests have one, its binary header, the flags of a hit, and the body: a GETK's
// key, the version, a hit's value. Clients wait in a queue in the order of their requests; that of
// a quiet request whose answer is left out leaves it with `ended_i`. IPv4's checksum is computed,
// UDP's is 0: none.
//
// Keys to be repeated are copied on their way into the table. All beats of a key are here before
// its answer is, since the table begins with whole requests. A copy whose answer does not repeat it
// is dropped. If there is no room for copies, keys wait; older requests need no younger key.
//
// Headers are 66 or 74 bytes, 70 or 78 with flags. What goes beyond whole beats of 8 bytes, and the
// body, pass a window of 16 bytes, 8 a cycle.

module response_formatter
  import ht_pkg::*;
#(
  parameter int unsigned Clients = 128,  // requests between the parser and here
  parameter int unsigned KeyBeats = 512  // of keys to be repeated; the longest takes 32
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [47:0] mac_i,
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,

  input  logic        client_valid_i,
  output logic        client_ready_o,
  input  client_t     client_i,
  input  logic        ended_i,          // the oldest request gets no answer
  input  logic        key_valid_i,      // keys of the requests, as the table takes them
  output logic        key_ready_o,
  input  beat_t       key_i,

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

  // What VERSION is answered: the register `version` as text, and the number of its bytes.
  localparam logic [39:0] VersionText = "0.2.0";
  localparam int unsigned VersionBytes = 5;
  localparam int unsigned DropWidth = $clog2(Clients + 1) + 1;

  if (KeyBeats < 64) begin : gen_check
    $error("response_formatter: KeyBeats must be two of the longest keys, at least 64");
  end

  logic      has_client, start, client_room, mark_room;
  client_t   client, to_q;
  response_t answer_q;

  assign client_ready_o = client_room && mark_room;
  fifo #(.Width($bits(client_t)), .Depth(Clients)) u_clients (
    .clk_i, .rst_ni, .valid_i(client_valid_i && mark_room), .ready_o(client_room),
    .data_i(client_i), .valid_o(has_client), .ready_i(start || ended_i), .data_o(client), .level_o()
  );

  // Whether each key on its way from the parser is one to be repeated.
  logic has_mark, is_copied, key_room, has_key, take_key, key_last;
  logic [63:0] key;
  fifo #(.Width(1), .Depth(4)) u_marks (
    .clk_i, .rst_ni, .valid_i(client_valid_i && client_room && client_i.klen != '0),
    .ready_o(mark_room), .data_i(client_i.wants_key), .valid_o(has_mark),
    .ready_i(key_valid_i && key_ready_o && key_i.last), .data_o(is_copied), .level_o()
  );
  assign key_ready_o = has_mark && (!is_copied || key_room);
  fifo #(.Width(65), .Depth(KeyBeats), .InBlock(1'b1)) u_keys (
    .clk_i, .rst_ni, .valid_i(key_valid_i && has_mark && is_copied), .ready_o(key_room),
    .data_i({key_i.last, key_i.data}), .valid_o(has_key), .ready_i(take_key),
    .data_o({key_last, key}), .level_o()
  );

  logic is_head_q, is_body_q;   // neither while no answer is on its way

  // An answer begins when no copy is left over from the requests before it.
  logic [DropWidth-1:0] drops_q;    // oldest copies to be dropped
  logic                 has_drops_q;
  logic is_repeated, is_stored, is_version, is_left_over;
  assign meta_ready_o = !is_head_q && !is_body_q && has_client && !has_drops_q;
  assign start        = meta_ready_o && meta_valid_i;
  assign is_repeated  = client.wants_key
                        && (meta_i.status == StatusOk || meta_i.status == StatusNotFound);
  assign is_stored    = meta_i.opcode == OpSet && meta_i.status == StatusOk;
  assign is_version   = meta_i.opcode == OpVersion && meta_i.status == StatusOk;
  assign is_left_over = client.wants_key && (ended_i || (start && !is_repeated));

  // The head, in words of two bytes.
  logic [23:0] body_bytes_q;
  logic [7:0]  key_bytes_q;
  logic [15:0] body_low, udp_bytes, ip_bytes, header_sum;
  logic [19:0] sum;
  logic [15:0] word [40];
  logic [3:0]  beat_q;
  assign body_low   = body_bytes_q[15:0];
  assign udp_bytes  = 16'd32 + body_low + (has_header_i ? 16'd8 : '0);
  assign ip_bytes   = udp_bytes + 16'd20;
  assign sum        = 20'h4500 + 20'(ip_bytes) + 20'h4000 + 20'h4011 + 20'(ip_i[31:16])
                      + 20'(ip_i[15:0]) + 20'(to_q.ip[31:16]) + 20'(to_q.ip[15:0]);
  assign header_sum = ~fold(sum);

  function automatic logic [15:0] fold(logic [19:0] value);
    logic [16:0] once = 17'(value[15:0]) + 17'(value[19:16]);
    return once[15:0] + 16'(once[16]);
  endfunction

  logic [15:0] packet [11];   // memcached's, without the end of its CAS id
  assign packet = '{
    {8'h81, answer_q.opcode}, {8'h0, key_bytes_q}, {answer_q.hit ? 8'd4 : 8'd0, 8'h0},
    answer_q.status, {8'h0, body_bytes_q[23:16]}, body_low, to_q.opaque[31:16], to_q.opaque[15:0],
    16'h0, 16'h0, 16'h0
  };
  always_comb begin
    word       = '{default: '0};
    word[0:2]  = '{to_q.mac[47:32], to_q.mac[31:16], to_q.mac[15:0]};
    word[3:5]  = '{mac_i[47:32], mac_i[31:16], mac_i[15:0]};
    word[6:12] = '{16'h0800, 16'h4500, ip_bytes, 16'h0, 16'h4000, 16'h4011, header_sum};
    word[13:16] = '{ip_i[31:16], ip_i[15:0], to_q.ip[31:16], to_q.ip[15:0]};
    word[17:20] = '{port_i, to_q.port, udp_bytes, 16'h0};
    if (has_header_i) begin
      word[21:24] = '{to_q.frame_id, 16'd0, 16'd1, 16'd0};
      for (int unsigned i = 0; i < 11; i++) word[25+i] = packet[i];
    end else begin
      for (int unsigned i = 0; i < 11; i++) word[21+i] = packet[i];
    end
  end

  logic [63:0] head;
  for (genvar i = 0; i < 4; i++) begin : gen_head
    logic [15:0] here;
    assign here = word[{beat_q, 2'(i)}];
    assign head[16*i+:16] = {here[7:0], here[15:8]};
  end

  // The body's parts, one after the other: whether each has a beat left, whether that is its last,
  // the beats behind it and the bytes of the last. They go to the window through a queue, so that
  // neither waits for the other within a cycle.
  logic        is_key_q, is_key_last_q, has_value_q, is_value_last_q, has_text_q;
  logic [4:0]  key_beats_q;
  logic [20:0] value_beats_q;
  logic [3:0]  key_tail_q, value_tail_q;
  logic        is_value, is_offered, is_dropping, is_dropped, is_end, part_room, has_part,
               is_last_part, take_part;
  logic [63:0] source, text, part;
  logic [3:0]  source_bytes, part_bytes;

  assign is_value    = has_value_q && !is_key_q;
  assign is_offered  = is_key_q ? has_key : has_text_q || (is_value && val_valid_i);
  assign is_dropping = has_drops_q && !is_key_q;
  assign is_dropped  = is_dropping && has_key && key_last;
  assign take_key    = is_dropping || (is_key_q && part_room);
  assign val_ready_o = is_value && part_room;

  for (genvar i = 0; i < 8; i++) begin : gen_text
    assign text[8*i+:8] = i < VersionBytes ? VersionText[8*(VersionBytes-1-i)+:8] : '0;
  end
  // Only an answer without key and value has a text.
  always_comb begin
    source       = val_i.data;
    source_bytes = is_value_last_q ? value_tail_q : 4'd8;
    is_end       = is_value_last_q;
    if (is_key_q) begin
      source       = key;
      source_bytes = is_key_last_q ? key_tail_q : 4'd8;
      is_end       = is_key_last_q && !has_value_q;
    end else if (has_text_q) begin
      source       = text;
      source_bytes = 4'(VersionBytes);
      is_end       = 1'b1;
    end
  end
  fifo #(.Width(69), .Depth(2)) u_parts (
    .clk_i, .rst_ni, .valid_i(is_offered), .ready_o(part_room),
    .data_i({is_end, source_bytes, source}), .valid_o(has_part), .ready_i(take_part),
    .data_o({is_last_part, part_bytes, part}), .level_o()
  );

  // The window. A part stands behind the bytes that it has: rotated by their number, which is the
  // same modulo 8 when a beat leaves. What lies behind the last byte is arbitrary.
  logic [127:0] window_q;
  logic [4:0]   count_q, count_next;
  logic         is_all_in_q, is_out, is_body_out;
  logic [63:0]  rotated;
  logic [24:0]  is_free;    // places from the window's end on

  assign is_body_out = is_body_q && is_out;
  assign take_part   = has_part && (is_body_out || count_q <= 5'd8);
  // A beat that leaves changes the upper two bits alone.
  assign count_next  = take_part ? count_q + 5'(part_bytes) : count_q;
  assign rotated     = 64'(({part, part} << {count_q[2:0], 3'b0}) >> 64);
  for (genvar i = 0; i < 25; i++) begin : gen_free
    assign is_free[i] = count_q <= 5'(i);
  end

  assign frame_valid_o = is_head_q || (is_body_q && (count_q >= 5'd8 || is_all_in_q));
  assign is_out        = frame_valid_o && frame_ready_i;
  always_comb begin
    frame_data_o = head;
    frame_keep_o = 8'hff;
    frame_last_o = 1'b0;
    if (is_body_q) begin
      frame_data_o = window_q[63:0];
      frame_last_o = is_all_in_q && count_q <= 5'd8;
      if (count_q < 5'd8) frame_keep_o = ~(8'hff << count_q[2:0]);
    end
  end

  always_ff @(posedge clk_i) begin
    if (start) begin
      to_q         <= client;
      answer_q     <= meta_i;
      key_bytes_q  <= is_repeated ? client.klen : '0;
      key_tail_q   <= {client.klen[2:0] == '0, client.klen[2:0]};
      value_tail_q <= {meta_i.vlen[2:0] == '0, meta_i.vlen[2:0]};
      body_bytes_q <= (meta_i.hit ? meta_i.vlen + 24'd4 : '0)
                      + (is_repeated ? 24'(client.klen) : is_version ? 24'(VersionBytes) : '0);
      // No item has the CAS id 1: it only keeps clients that compare from writing without.
      window_q     <= {80'b0, meta_i.flags[7:0], meta_i.flags[15:8], meta_i.flags[23:16],
                       meta_i.flags[31:24], 7'b0, meta_i.hit || is_stored, 8'b0};
    end else begin
      for (int unsigned i = 0; i < 16; i++) begin
        if (is_body_out) begin
          window_q[8*i+:8] <= is_free[i+8] ? rotated[8*(i%8)+:8] : window_q[8*((i+8)%16)+:8];
        end else if (is_free[i]) begin
          window_q[8*i+:8] <= rotated[8*(i%8)+:8];
        end
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      is_head_q       <= 1'b0;
      is_body_q       <= 1'b0;
      beat_q          <= '0;
      count_q         <= '0;
      is_key_q        <= 1'b0;
      is_key_last_q   <= 1'b0;
      key_beats_q     <= '0;
      has_value_q     <= 1'b0;
      is_value_last_q <= 1'b0;
      value_beats_q   <= '0;
      has_text_q      <= 1'b0;
      is_all_in_q     <= 1'b0;
      drops_q         <= '0;
      has_drops_q     <= 1'b0;
    end else begin
      drops_q     <= drops_q + DropWidth'(is_left_over) - DropWidth'(is_dropped);
      has_drops_q <= is_left_over || (has_drops_q && !(is_dropped && drops_q == DropWidth'(1)));
      if (start) begin
        is_head_q       <= 1'b1;
        beat_q          <= '0;
        count_q         <= meta_i.hit ? 5'd6 : 5'd2;
        is_key_q        <= is_repeated && client.klen != '0;
        is_key_last_q   <= client.klen <= 8'd8;
        key_beats_q     <= 5'((client.klen - 8'd1) >> 3);
        has_value_q     <= meta_i.hit && meta_i.vlen != '0;
        is_value_last_q <= meta_i.vlen <= 24'd8;
        value_beats_q   <= 21'((meta_i.vlen - 24'd1) >> 3);
        has_text_q      <= is_version;
        is_all_in_q     <= !is_repeated && !is_version && (!meta_i.hit || meta_i.vlen == '0);
      end else begin
        if (is_out) beat_q <= beat_q + 1'b1;
        if (is_head_q && is_out && beat_q == (has_header_i ? 4'd8 : 4'd7)) begin
          is_head_q <= 1'b0;
          is_body_q <= 1'b1;
        end
        if (is_body_out && frame_last_o) is_body_q <= 1'b0;
        count_q <= {count_next[4:3] - 2'(is_body_out), count_next[2:0]};
        if (take_part && is_last_part) is_all_in_q <= 1'b1;
        if (is_offered && part_room) begin
          if (is_key_q) begin
            is_key_q      <= !is_key_last_q;
            is_key_last_q <= key_beats_q == 5'd1;
            key_beats_q   <= key_beats_q - 1'b1;
          end else begin
            has_value_q     <= has_value_q && !is_value_last_q;
            is_value_last_q <= value_beats_q == 21'd1;
            value_beats_q   <= value_beats_q - 1'b1;
            has_text_q      <= 1'b0;
          end
        end
      end
    end
  end

endmodule
